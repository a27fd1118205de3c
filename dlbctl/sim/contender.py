"""What is compared: a policy, and for MNLB what it is told of how much a server bears."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dlbctl.core.errors import UsageError
from dlbctl.core.policy import Policy

RAND = "weighted-random"
_PLANNER = "mnlb"

Capacity = Literal["true", "nominal"]

# The paper's two mechanisms, and discrete routing as this project has it, by the paper's three costs; its baselines.
DEFAULTS = (
    RAND,
    _PLANNER,
    f"{_PLANNER}:nominal",
    *(f"{mechanism}/{cost}" for mechanism in ("argmin", "discrete", "flow") for cost in ("rif", "latency", "gradient")),
)


class Contender(Struct, frozen=True):
    """A policy by name. capacity: what MNLB believes that a server bears: its cell's own, or the same everywhere."""

    policy: str
    capacity: Capacity = "true"

    @property
    def name(self) -> str:
        """As it was written: `flow/gradient`, `mnlb`, `mnlb:nominal`."""
        return self.policy if self.capacity == "true" else f"{self.policy}:{self.capacity}"

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read a contender. UsageError or ConfigError says what there is to choose from."""
        policy, colon, capacity = text.partition(":")
        if not colon:
            Policy.parse(policy, where="--policies")
            return cls(policy)
        if policy != _PLANNER:
            raise UsageError(f"--policies {text}: only {_PLANNER} is told of capacity", hint=f"write {policy}")
        if capacity not in ("true", "nominal"):
            raise UsageError(f"--policies {text}: capacity is true or nominal")
        Policy.parse(policy, where="--policies")
        return cls(policy, "nominal" if capacity == "nominal" else "true")


def parse_contenders(texts: list[str]) -> tuple[Contender, ...]:
    """All that were named, and weighted-random, which the others are set against, before them if it was not."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if RAND not in names:
        names.insert(0, RAND)
    return tuple(Contender.parse(name) for name in names)
