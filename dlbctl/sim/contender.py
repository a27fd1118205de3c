"""What is compared: a policy, for MNLB with what it is told of how much a server bears, for flows with a stepsize."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dlbctl.core.errors import ConfigError, UsageError
from dlbctl.core.names import listed
from dlbctl.core.policy import Policy

RAND = "weighted-random"
_PLANNER = "mnlb"
_FLOWS = ("flow/", "flow-pi/")

Capacity = Literal["true", "nominal"]

# The paper's two mechanisms, and discrete routing as this project has it, by the paper's three costs; its baselines.
DEFAULTS = (
    RAND,
    _PLANNER,
    f"{_PLANNER}:nominal",
    *(f"{mechanism}/{cost}" for mechanism in ("argmin", "discrete", "flow") for cost in ("rif", "latency", "gradient")),
)


class Contender(Struct, frozen=True):
    """A policy by name. capacity: what MNLB believes that a server bears: its cell's own, or the same everywhere.

    stepsize: eta of flow or flow-pi, 0 for its rule.
    """

    policy: str
    capacity: Capacity = "true"
    stepsize: float = 0.0

    @property
    def name(self) -> str:
        """As it was written: `flow/gradient`, `flow/gradient:0.01`, `mnlb`, `mnlb:nominal`."""
        if self.stepsize:
            return f"{self.policy}:{self.stepsize:g}"
        return self.policy if self.capacity == "true" else f"{self.policy}:{self.capacity}"

    @classmethod
    def parse(cls, text: str, *, option: str) -> Contender:
        """Read a contender that the command line names. UsageError says what there is to choose from."""
        policy, colon, more = text.partition(":")
        try:
            Policy.parse(policy, where=option)
        except ConfigError as error:
            raise UsageError(error.message, hint=error.hint) from error
        if not colon:
            return cls(policy)
        if policy.startswith(_FLOWS):
            return cls(policy, stepsize=_stepsize(f"{option} {text}", more))
        if policy != _PLANNER:
            hint = f"{_PLANNER}:nominal, flow/gradient:0.01, or {policy} alone"
            raise UsageError(
                f"{option} {text}: only {_PLANNER} is told of capacity, and flows of a stepsize", hint=hint
            )
        if more not in ("true", "nominal"):
            raise UsageError(f"{option} {text}: capacity is true or nominal")
        return cls(policy, "nominal" if more == "nominal" else "true")


def _stepsize(where: str, number: str) -> float:
    try:
        stepsize = float(number)
    except ValueError:
        stepsize = -1.0
    if not 0.0 < stepsize < float("inf"):
        raise UsageError(f"{where}: {number!r} is no stepsize", hint="a positive number")
    return stepsize


def parse_contenders(texts: list[str]) -> tuple[Contender, ...]:
    """All that were named, and weighted-random, which the others are set against, before them if it was not."""
    names = listed(texts, "--policies")
    if RAND not in names:
        names.insert(0, RAND)
    return tuple(Contender.parse(name, option="--policies") for name in names)
