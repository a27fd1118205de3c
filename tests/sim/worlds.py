"""Small simulated worlds for tests, what was observed of them, and means with their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from dlbctl.core.events import Drift
from dlbctl.core.tier import Tier
from dlbctl.sim.arrivals import Request
from dlbctl.sim.plan import CellPlan, ServerPlan, WorldPlan
from dlbctl.sim.world import World


@dataclass(frozen=True, slots=True)
class Seen:
    """One request that is over, as `Observer.ended` is told of it."""

    at_s: float
    source: int
    cell: int
    server: str
    arrived_s: float
    latency_s: float
    ttft_s: float
    status: int
    code: str


@dataclass
class Notes:
    """An observer that keeps everything, in the order of ends."""

    seen: list[Seen] = field(default_factory=list)

    def ended(
        self,
        at_s: float,
        source: int,
        cell: int,
        server: str,
        arrived_s: float,
        latency_s: float,
        ttft_s: float,
        status: int,
        code: str,
    ) -> None:
        self.seen.append(Seen(at_s, source, cell, server, arrived_s, latency_s, ttft_s, status, code))

    @property
    def by_arrival(self) -> list[Seen]:
        """In the order in which they came."""
        return sorted(self.seen, key=lambda one: (one.arrived_s, one.at_s))

    def latencies_s(self, after_s: float = 0.0) -> list[float]:
        """Of all that came after a time and went well, in the order in which they came."""
        return [one.latency_s for one in self.by_arrival if one.arrived_s >= after_s and one.status == 200]


def one_cell(server: ServerPlan, *, count: int = 1, tau_s: float = 0.0, **more: Any) -> WorldPlan:
    """One root in front of one leaf in front of servers that are alike."""
    return many_cells({"a": (server,) * count}, {"here": (tau_s,)}, **more)


def many_cells(
    cells: Mapping[str, tuple[ServerPlan, ...]], one_way_s: Mapping[str, tuple[float, ...]], **more: Any
) -> WorldPlan:
    """Cells with their servers, and for each source the way to each cell."""
    plans = tuple(CellPlan(name, servers) for name, servers in cells.items())
    ways = {
        (source, cell): delay_s for source, row in one_way_s.items() for cell, delay_s in zip(cells, row, strict=True)
    }
    return WorldPlan(cells=plans, sources=tuple(one_way_s), one_way_s=ways, **more)


def watched(plan: WorldPlan, requests: Iterable[Request]) -> tuple[World, Notes]:
    """A world before it begins, and who watches it."""
    notes = Notes()
    return World(plan, iter(requests), notes), notes


def lived(plan: WorldPlan, requests: Iterable[Request], limit_s: float = 1e6) -> Notes:
    """What is seen of a world in which these requests come, until all are over."""
    world, notes = watched(plan, requests)
    world.finish(limit_s)
    assert world.exhausted
    assert world.in_flight == 0
    return notes


def until(requests: Iterator[Request], end_s: float) -> Iterator[Request]:
    """Those of an endless stream that come before a time."""
    for one in requests:
        if one.at_s >= end_s:
            return
        yield one


def tiers(world: World) -> list[Tier]:
    """All of a world's."""
    return [leaf.tier for leaf in world.leaves] + [root.tier for root in world.roots]


def assert_no_drift(world: World) -> None:
    """Tiers count what is really open there."""
    open_ = [(leaf.tier, set(leaf.open)) for leaf in world.leaves] + [
        (root.tier, set(root.open)) for root in world.roots
    ]
    for tier, numbers in open_:
        assert numbers == set(tier.exchanges)
        assert tier.audited(world.now_s, tuple(numbers)) == Drift()


def mean_and_error(values: list[float], batches: int = 30) -> tuple[float, float]:
    """The mean of a steady series and its standard error, by batch means: neighbours depend on each other."""
    size = len(values) // batches
    means = [fmean(values[size * number : size * (number + 1)]) for number in range(batches)]
    return fmean(means), stdev(means) / sqrt(batches)
