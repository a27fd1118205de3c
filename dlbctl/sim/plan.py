"""What is simulated: cells with modelled servers, places where roots stand, delays, and how it is routed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from random import Random
from typing import Protocol

from dlbctl.core.curve import Curve
from dlbctl.core.errors import UsageError
from dlbctl.core.policy import Policy
from dlbctl.core.settings import (
    EndpointSettings,
    ExplorationSettings,
    FlowSettings,
    HealthSettings,
    Limits,
    QueueSettings,
    RetrySettings,
    Timeouts,
)
from dlbctl.engine.profile import Profile
from dlbctl.sim.agenda import Agenda
from dlbctl.sim.servers.batching import Batching
from dlbctl.sim.servers.disaggregated import Disaggregated
from dlbctl.sim.servers.multi import Multi
from dlbctl.sim.servers.rate import Rate
from dlbctl.sim.servers.server import Server

MODEL = "model"


class ServerPlan(Protocol):
    """A kind of modelled server with its figures."""

    @property
    def weight(self) -> float:
        """How many standard servers it counts for."""

    def make(self, agenda: Agenda, rng: Random) -> Server:
        """A server of this kind, idle."""


@dataclass(frozen=True, slots=True)
class DisaggregatedPlan:
    """DLB's server: one prefill engine and so many decode engines, times in seconds per token."""

    prefill_s: float
    decode_s: float
    decode_engines: int = 2
    slots_per_engine: int = 4
    weight: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "prefill_s", "decode_s", "decode_engines", "slots_per_engine", "weight")

    def make(self, agenda: Agenda, rng: Random) -> Server:  # noqa: ARG002 - nothing of it is random
        """An idle one."""
        slots = self.decode_engines * self.slots_per_engine
        return Disaggregated(agenda, prefill_s=self.prefill_s, decode_s=self.decode_s, slots=slots)

    def capacity_rps(self, prompt_tokens: float, output_tokens: float) -> float:
        """Requests a second of this mean size that it serves at most."""
        slots = self.decode_engines * self.slots_per_engine
        return min(1.0 / (prompt_tokens * self.prefill_s), slots / (output_tokens * self.decode_s))


@dataclass(frozen=True, slots=True)
class BatchingPlan:
    """The embedded engine; time_factor: so many times as fast as its profile; queue_limit: requests that may wait."""

    profile: Profile
    time_factor: float = 1.0
    weight: float = 1.0
    queue_limit: int = 1024

    def __post_init__(self) -> None:
        _positive(self, "time_factor", "weight")

    def make(self, agenda: Agenda, rng: Random) -> Server:  # noqa: ARG002 - nothing of it is random
        """An idle one."""
        return Batching(agenda, profile=self.profile, time_factor=self.time_factor, queue_limit=self.queue_limit)


@dataclass(frozen=True, slots=True)
class MultiPlan:
    """M/G/k: service times gamma distributed with this coefficient of variation, 1 for exponential ones."""

    mean_s: float
    workers: int = 1
    cv: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "mean_s", "workers", "weight")
        if not 0.0 <= self.cv < inf:
            raise UsageError(f"MultiPlan: cv is {self.cv:g}: it cannot be negative")

    def make(self, agenda: Agenda, rng: Random) -> Server:
        """An idle one."""
        return Multi(agenda, rng, workers=self.workers, mean_s=self.mean_s, cv=self.cv)


@dataclass(frozen=True, slots=True)
class RatePlan:
    """All `weight` servers of a cell as one whose rate is the curve's, weight x mu(N/weight)."""

    curve: Curve
    weight: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "weight")

    def make(self, agenda: Agenda, rng: Random) -> Server:
        """An idle one."""
        return Rate(agenda, rng, curve=self.curve, k=self.weight)


@dataclass(frozen=True, slots=True)
class CellPlan:
    """A cell. slots: requests in flight that each server takes, 0 for any number; queue_size: that wait beyond them,
    and queue_wait_s: how long.

    capacity_rps: what `mnlb` is told that one server serves, 0 for nothing. curve: what its leaves say their latency
    curve is, instead of fitting one. curve_factor: an error in what they say, as DLB's section 5.4 has it.
    """

    name: str
    servers: tuple[ServerPlan, ...]
    slots: int = 0
    queue_size: int = 0
    queue_wait_s: float = QueueSettings().max_wait_s
    capacity_rps: float = 0.0
    curve: Curve | None = None
    curve_factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.servers:
            raise UsageError(f"cell {self.name}: has no server")
        for name in ("slots", "queue_size", "capacity_rps"):
            if not 0 <= getattr(self, name) < inf:
                raise UsageError(f"cell {self.name}: {name} is {getattr(self, name):g}: it cannot be negative")
        _positive(self, "curve_factor", where=f"cell {self.name}")


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """Everything a world is made of but its arrivals; with them and the seed it determines all that happens.

    sources: places where a root stands, numbered as `Request.source` counts them. one_way_s: network delay by
    (source, cell). limits, flow: of the endpoint at the roots; exploration: of it everywhere. timeouts: `first_byte_s`
    of them; connections stand, and what has begun never falls silent. `check` raises UsageError.
    """

    cells: tuple[CellPlan, ...]
    sources: tuple[str, ...]
    one_way_s: Mapping[tuple[str, str], float]
    policy: str = "discrete/latency"
    leaf_policy: str = "power-of-d/work"
    probe_interval_s: float = 0.01
    probe_loss: float = 0.0
    roots_per_source: int = 1
    leaves_per_cell: int = 1
    retries: RetrySettings = RetrySettings(attempts=1)  # noqa: RUF009 - it is frozen
    limits: Limits = Limits()  # noqa: RUF009
    flow: FlowSettings = FlowSettings()  # noqa: RUF009
    exploration: ExplorationSettings = ExplorationSettings()  # noqa: RUF009
    timeouts: Timeouts = field(default_factory=Timeouts)
    health: HealthSettings = field(default_factory=HealthSettings)
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be simulated, saying what and where."""
        if not self.cells:
            raise UsageError("no cell: there is nowhere to send requests to")
        if not self.sources:
            raise UsageError("no source: there is no root that requests come to")
        _unique([cell.name for cell in self.cells], "cell")
        _unique(list(self.sources), "source")
        for source in self.sources:
            for cell in self.cells:
                self._check_delay(source, cell.name)
        if not (isfinite(self.probe_interval_s) and self.probe_interval_s > 0.0):
            raise UsageError(f"probe interval {self.probe_interval_s:g} s: must be above 0")
        if not 0.0 <= self.probe_loss < 1.0:
            raise UsageError(f"probe loss {self.probe_loss:g}: must be from 0 up to, but not, 1")
        for name in ("roots_per_source", "leaves_per_cell"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: at least 1 is needed")
        if self.timeouts.total_s:
            raise UsageError("a limit on the whole of a request (total_s) is not simulated")
        Policy.parse(self.policy)
        Policy.parse(self.leaf_policy, where="leaf policy")

    def _check_delay(self, source: str, cell: str) -> None:
        delay_s = self.one_way_s.get((source, cell))
        if delay_s is None:
            raise UsageError(f"the network delay from {source} to {cell} is missing")
        if not (isfinite(delay_s) and delay_s >= 0.0):
            raise UsageError(f"the network delay from {source} to {cell} is {delay_s:g} s: it cannot be negative")

    @property
    def root_endpoint(self) -> EndpointSettings:
        """The one endpoint there is, at a root."""
        return EndpointSettings(
            name=MODEL, policy=self.policy, limits=self.limits, flow=self.flow, exploration=self.exploration
        )

    @property
    def leaf_endpoint(self) -> EndpointSettings:
        """The same at a leaf."""
        return EndpointSettings(name=MODEL, policy=self.leaf_policy, exploration=self.exploration)

    def queue(self, cell: CellPlan) -> QueueSettings:
        """How many requests wait at a leaf of the cell, and how long."""
        return QueueSettings(size=cell.queue_size, max_wait_s=cell.queue_wait_s)


def _positive(plan: object, *names: str, where: str = "") -> None:
    for name in names:
        value = getattr(plan, name)
        if not 0 < value < inf:
            raise UsageError(f"{where or type(plan).__name__}: {name} is {value:g}: must be above 0")


def _unique(names: list[str], kind: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"two {kind}s are called {name}")
