"""What a tier is configured with: its targets, its endpoints, and how long each phase may last.

The structures validate types themselves (msgspec); `check` methods hold what types cannot say.
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dlbctl.core.errors import ConfigError
from dlbctl.core.policy import Policy

Role = Literal["root", "leaf"]

# A root starts on the latency cost, which needs no more than a curve, and falls back to RIF by itself
# until the curves are known. A leaf weighs waiting work, as DLB section 3.1 does.
DEFAULT_POLICY: dict[Role, str] = {"root": "discrete/latency", "leaf": "power-of-d/work"}


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """Longest silence allowed in each phase of an attempt. 0 turns a limit off."""

    connect_s: Annotated[float, Meta(description="Until a connection to the target stands.")] = 2.0
    first_byte_s: Annotated[float, Meta(description="From the request being sent to the answer's first byte.")] = 600.0
    idle_s: Annotated[float, Meta(description="Between two pieces of an answer.")] = 300.0
    total_s: Annotated[float, Meta(description="From the arrival of a request to the end of its answer.")] = 0.0

    def check(self, where: str) -> None:
        """Raise ConfigError for a negative time."""
        for name in self.__struct_fields__:
            if not getattr(self, name) >= 0:  # NaN is not either
                raise ConfigError(f"{where}.{name}: a time-out cannot be negative", hint="use 0 to turn it off")


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of an endpoint may be in flight at once. 0: no limit."""

    max_in_flight: Annotated[int, Meta(description="Most requests in flight; more are answered 503.")] = 0


class EndpointSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One served model name and how its requests are routed."""

    name: Annotated[str, Meta(description="The `model` that clients send.")]
    policy: Annotated[
        str,
        Meta(description="How targets are chosen, `MECHANISM/COST` as under POLICIES; empty for the tier's default."),
    ] = ""
    limits: Annotated[
        Limits,
        Meta(description="How much of the endpoint this router has in flight at once; 0 for no limit."),
    ] = field(default_factory=Limits)
    timeouts: Annotated[
        Timeouts | None,
        Meta(description="In place of the whole table `[timeouts]`, for this endpoint."),
    ] = None

    def check(self, where: str) -> None:
        """Raise ConfigError for a policy that does not exist or a limit that cannot be."""
        if not self.name or not self.name.isprintable():
            raise ConfigError(f"{where}.name: an endpoint needs the model name that clients send, in printable text")
        if self.policy:
            Policy.parse(self.policy, where=f"{where}.policy")
        if self.limits.max_in_flight < 0:
            raise ConfigError(f"{where}.limits.max_in_flight: cannot be negative", hint="use 0 for no limit")
        if self.timeouts is not None:
            self.timeouts.check(f"{where}.timeouts")


class TargetSettings(Struct, frozen=True):
    """A cell (for a root) or a server (for a leaf) that requests may be sent to.

    addresses: where it is reached; a cell has one per leaf, a server exactly one.
    endpoints: what a server serves; empty means that it is asked (`models_learned`).
    """

    name: str
    addresses: tuple[str, ...]
    endpoints: tuple[str, ...] = ()
    weight: float = 1.0
    slots: int = 0


class TierSettings(Struct, frozen=True):
    """The whole configuration of one tier; with a seed and the events it determines every action."""

    role: Role
    cell: str
    targets: tuple[TargetSettings, ...] = ()
    endpoints: tuple[EndpointSettings, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    seed: int = 0
