"""What a tier is configured with: its targets, its endpoints, and how long each phase may last.

The structures validate types themselves (msgspec); `check` methods hold what types cannot say.
Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dlbctl.core.errors import ConfigError
from dlbctl.core.policy import Policy

Role = Literal["root", "leaf"]

# A root goes by what suits the endpoint and is known of its cells (docs/policies.md says why); the papers leave the
# choice to an operator. A leaf weighs waiting work, as DLB section 3.1 does.
DEFAULT_POLICY: dict[Role, str] = {"root": "auto/auto", "leaf": "power-of-d/work"}


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

    max_in_flight: Annotated[
        int,
        Meta(description="Most requests in flight; more wait at a leaf, and are answered 503 by a root."),
    ] = 0


class RetrySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When a request whose attempt failed is sent to another target."""

    attempts: Annotated[int, Meta(description="Most attempts for one request, the first included.")] = 3
    after_sent: Annotated[
        bool,
        Meta(
            description="Also retry when the server may have begun to work on the request: after a 5xx, a time-out or "
            "a connection that closed before an answer. Without it only what no server began is retried."
        ),
    ] = False
    budget: Annotated[
        float,
        Meta(description="Retries under way at once, as a share of the endpoint's requests in flight."),
    ] = 0.2
    budget_min: Annotated[int, Meta(description="Retries under way at once that are always allowed.")] = 3

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        if self.attempts < 1:
            raise ConfigError(f"{where}.attempts: must be at least 1", hint="1 turns retries off")
        if not 0 <= self.budget <= 1:
            raise ConfigError(f"{where}.budget: {self.budget:g} is outside 0 to 1")
        if self.budget_min < 0:
            raise ConfigError(f"{where}.budget_min: cannot be negative")


class HealthSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """When a leaf takes a server for ill, and how it comes back."""

    path: Annotated[
        str,
        Meta(description="What is asked to see whether a server is well; `/v1/models` is asked for its models anyway."),
    ] = "/v1/models"
    interval_s: Annotated[float, Meta(description="Between two probes of a server that is well.")] = 5.0
    timeout_s: Annotated[float, Meta(description="Longest wait for the answer to a probe.")] = 5.0
    fall: Annotated[int, Meta(description="Probes missed in a row that make a server down.")] = 3
    rise: Annotated[int, Meta(description="Probes answered in a row that bring it back.")] = 2
    failures: Annotated[
        int,
        Meta(
            description="Requests failed in a row that eject a server: 5xx other than 503, time-outs, broken "
            "connections. Never 4xx, nor a server that says it is busy. 0: requests eject nobody."
        ),
    ] = 5
    eject_s: Annotated[float, Meta(description="Length of a first ejection; each further one is twice as long.")] = 10.0
    eject_max_s: Annotated[float, Meta(description="Longest ejection.")] = 300.0
    max_ejected: Annotated[
        float,
        Meta(description="Largest share of a leaf's servers that may be ejected at once; of several, one always may."),
    ] = 0.5
    slow_start_s: Annotated[
        float,
        Meta(description="Time in which a server that came back gets its whole share again; 0 for at once."),
    ] = 30.0

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        if not self.path.startswith("/") or not self.path.isprintable() or " " in self.path:
            raise ConfigError(f"{where}.path: {self.path!r} is no path", hint='for instance "/health"')
        for name in ("interval_s", "timeout_s", "eject_s", "eject_max_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{where}.{name}: must be positive")
        for name in ("fall", "rise"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{where}.{name}: must be at least 1")
        if self.failures < 0:
            raise ConfigError(f"{where}.failures: cannot be negative", hint="use 0 to turn it off")
        if not 0 <= self.max_ejected <= 1:
            raise ConfigError(f"{where}.max_ejected: {self.max_ejected:g} is outside 0 to 1")
        if not self.slow_start_s >= 0:
            raise ConfigError(f"{where}.slow_start_s: cannot be negative", hint="use 0 to turn it off")


class QueueSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests of an endpoint may wait at a leaf for a server with room, and how long."""

    size: Annotated[
        int,
        Meta(description="Most requests of one endpoint that wait; 0 for none, so that a full leaf says no at once."),
    ] = 128
    max_wait_s: Annotated[float, Meta(description="Longest wait; then the request is answered 503.")] = 30.0

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        if self.size < 0:
            raise ConfigError(f"{where}.size: cannot be negative", hint="use 0 for no queue")
        if not self.max_wait_s > 0:
            raise ConfigError(f"{where}.max_wait_s: must be positive")


class FlowSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How the mechanisms `flow` and `flow-pi` move an endpoint's shares."""

    stepsize: Annotated[
        float,
        Meta(
            description="How fast shares follow costs: eta of DLB section 3.2.2. With `flow` per second squared for "
            "costs in seconds, with `flow-pi`, whose costs are relative, per second. 0 for 0.01 (per second with "
            "`flow`), divided by the mean one-way latency to the targets in seconds."
        ),
    ] = 0.0
    rule: Annotated[
        Literal["paper", "safe"],
        Meta(
            description="Where stepsize is 0: `paper` for that, `safe` for the largest that is certainly stable at the "
            "present loads, if it is less. That is often a hundred times too careful."
        ),
    ] = "paper"
    automatic: Annotated[
        bool | None,
        Meta(
            description="Whether the stepsize is halved while shares swing, and regrows when they do not. By default "
            "with `flow-pi`, and not with `flow`, which is the paper's."
        ),
    ] = None
    split: Annotated[
        Literal["random", "deficit"] | None,
        Meta(
            description="How requests are drawn by their shares: each by chance, as the paper has it, or so that at "
            "any time every target has had its share to within a few requests. By default as the mechanism has it."
        ),
    ] = None

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        if not 0 <= self.stepsize < inf:
            raise ConfigError(f"{where}.stepsize: must be positive and finite", hint="use 0 to go by the latencies")


class ExplorationSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How is found out what users' requests do not show."""

    probe_rps: Annotated[
        float,
        Meta(
            description="Most requests per second, 0 to 1, that a leaf makes by itself to see how a model fares which "
            "is asked for elsewhere and of which it gets next to nothing; 0 for none. They are small, one at a time, "
            "bear the header `dlb-probe`, and are no part of its users' metrics."
        ),
    ] = 0.5
    dither: Annotated[
        float,
        Meta(
            description="A root goes by latency curves as if they were off by their uncertainty, this share at most "
            "and otherwise every 5 to 10 s, so that no cell is passed over for an error for ever; 0 for exactly as "
            "learned."
        ),
    ] = 0.05

    def check(self, where: str) -> None:
        """Raise ConfigError for what types cannot say."""
        if not 0 <= self.probe_rps <= 1:
            raise ConfigError(f"{where}.probe_rps: {self.probe_rps:g} is outside 0 to 1", hint="use 0 for none")
        if not 0 <= self.dither <= 1:
            raise ConfigError(f"{where}.dither: {self.dither:g} is outside 0 to 1", hint="use 0 for none")


class EndpointSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One served model name and how its requests are routed."""

    name: Annotated[str, Meta(description="The `model` that clients send.")]
    policy: Annotated[
        str,
        Meta(description="How targets are chosen, a policy as under POLICIES; empty for the tier's default."),
    ] = ""
    limits: Annotated[
        Limits,
        Meta(description="How much of the endpoint this router has in flight at once; 0 for no limit."),
    ] = field(default_factory=Limits)
    timeouts: Annotated[
        Timeouts | None,
        Meta(description="In place of the whole table `[timeouts]`, for this endpoint."),
    ] = None
    retries: Annotated[
        RetrySettings | None,
        Meta(description="In place of the whole table `[retries]`, for this endpoint."),
    ] = None
    flow: Annotated[
        FlowSettings,
        Meta(description="How `flow` and `flow-pi`, where the policy has one of them, move their shares."),
    ] = field(default_factory=FlowSettings)
    exploration: Annotated[
        ExplorationSettings,
        Meta(description="How is found out what users' requests do not show."),
    ] = field(default_factory=ExplorationSettings)

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
        if self.retries is not None:
            self.retries.check(f"{where}.retries")
        self.flow.check(f"{where}.flow")
        self.exploration.check(f"{where}.exploration")


class TargetSettings(Struct, frozen=True):
    """A cell (for a root) or a server (for a leaf) that requests may be sent to.

    addresses: where it is reached; a cell has one per leaf, a server exactly one.
    endpoints: what a server serves; empty means that it is asked (`models_learned`). capacity_rps: requests per second
    that one server of a cell takes; 0 if that is not known. hardware: cells that have the same are alike.
    """

    name: str
    addresses: tuple[str, ...]
    endpoints: tuple[str, ...] = ()
    weight: float = 1.0
    slots: int = 0
    capacity_rps: float = 0.0
    hardware: str = ""


class TierSettings(Struct, frozen=True):
    """The whole configuration of one tier; with a seed and the events it determines every action.

    max_in_flight: of all endpoints together, waiting ones included; 0 for no limit.
    """

    role: Role
    cell: str
    targets: tuple[TargetSettings, ...] = ()
    endpoints: tuple[EndpointSettings, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    seed: int = 0
    max_in_flight: int = 0
    retries: RetrySettings = field(default_factory=RetrySettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
