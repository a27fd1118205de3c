"""Cases side by side: each policy with the fleet as it is and as it would be, on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from msgspec import Struct, structs

from dlbctl.engine.sweep import capacity_rps
from dlbctl.sim.arrivals import Request
from dlbctl.sim.measurement import Measurement
from dlbctl.sim.plan import BatchingPlan, CellPlan, RatePlan, ServerPlan
from dlbctl.sim.statistics import RunFigures
from dlbctl.sim.whatif.changes import WhatIf
from dlbctl.sim.whatif.fleet import Fleet
from dlbctl.sim.whatif.traffic import Traffic
from dlbctl.sim.world import World

AS_IT_IS = "as it is"
# Virtual time between two looks at how far a run is.
_SLICE_S = 1.0
# After the last request, what is open has as long as a router by default waits for a first byte.
_DRAIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """One run to be: a policy, the fleet that it routes, and what changes during the run."""

    policy: str
    fleet: Fleet
    what_if: WhatIf

    @property
    def name(self) -> str:
        """What is otherwise in it."""
        return str(self.what_if) if self.what_if else AS_IT_IS


class CellFigures(Struct, frozen=True):
    """A cell in a run. share: of the requests. utilisation: of what it serves at most, None where that is not known.

    Utilisation is that of requests of the mean size, of which no prefix is cached; of a cell that changes during the
    run it is set against what the cell was at the beginning.
    """

    cell: str
    servers: float
    share: float
    utilisation: float | None


class Row(Struct, frozen=True):
    """One case's outcome. load: demand over what all cells serve. over_first: its mean latency over the first row's."""

    case: str
    policy: str
    demand_rps: float
    load: float
    over_first: float | None
    figures: RunFigures
    cells: list[CellFigures]


class Step(Struct, frozen=True):
    """How far it is: requests that have come, of all; and the run that is under way."""

    requests: int
    requests_asked: int
    run: int
    runs: int


def cases_of(fleet: Fleet, policies: Sequence[str], what_if: WhatIf) -> list[Case]:
    """Every policy with the fleet as it is, then with what is otherwise. UsageError for what cannot be."""
    pairs = [(fleet, WhatIf())]
    if what_if:
        pairs.append((what_if.applied_to(fleet), what_if))
    cases = [
        Case(policy, replace(changed, plan=replace(changed.plan, policy=policy)), otherwise)
        for changed, otherwise in pairs
        for policy in policies or [fleet.plan.policy]
    ]
    for case in cases:
        case.fleet.plan.check()
    return cases


def compare(
    cases: Sequence[Case], traffic: Traffic, *, warm_up_s: float, watch: Callable[[Step], None]
) -> Iterator[Row]:
    """Run the cases one after the other, and yield each one's outcome. Requests of the warm-up do not count."""
    first_s: float | None = None
    asked = len(traffic.rows)
    for number, case in enumerate(cases):

        def tell(arrived: int, number: int = number) -> None:
            watch(Step(number * asked + arrived, len(cases) * asked, number + 1, len(cases)))

        figures = _run(case, traffic, warm_up_s, tell)
        first_s = first_s if number else figures.mean_s
        yield _row(case, traffic, figures, warm_up_s, first_s)


def load_of(case: Case, traffic: Traffic) -> float:
    """Demand over the capacity of all cells."""
    return traffic.rate_rps * case.what_if.demand / sum(capacity_of(cell, traffic) for cell in case.fleet.plan.cells)


def capacity_of(cell: CellPlan, traffic: Traffic) -> float:
    """Requests of the mean size that it serves a second at most, none of their prompts cached."""
    return sum(_capacity_of(server, traffic) for server in cell.servers)


def _capacity_of(server: ServerPlan, traffic: Traffic) -> float:
    match server:
        case BatchingPlan():
            size = (round(traffic.prompt_tokens), round(traffic.output_tokens))
            return _engine_capacity_rps(server.profile, *size) * server.time_factor
        case RatePlan(curve):
            return curve.capacity_per_server() * server.weight
    raise AssertionError("fleets have these two kinds of servers")


_engine_capacity_rps = lru_cache(capacity_rps)


def _run(case: Case, traffic: Traffic, warm_up_s: float, tell: Callable[[int], None]) -> RunFigures:
    plan, demand, arrived = case.fleet.plan, case.what_if.demand, 0

    def counted() -> Iterator[Request]:
        nonlocal arrived
        for request in traffic.arrivals(
            plan.sources, case.fleet.weights, demand=demand, engine_block_tokens=_block_tokens(case.fleet)
        ):
            arrived += 1
            yield request

    measurement = Measurement([cell.name for cell in plan.cells], from_s=warm_up_s, until_s=inf)
    world = World(plan, counted(), measurement)
    for change in case.what_if.later:
        assert change.at_s is not None
        world.at(change.at_s, change.happen)
    limit_s = traffic.span_s / demand + _DRAIN_S
    while world.now_s < limit_s and not (world.exhausted and world.in_flight == 0):
        world.run(world.now_s + _SLICE_S)
        tell(arrived)
    return measurement.figures(unfinished=world.in_flight)


def _block_tokens(fleet: Fleet) -> int:
    """Of the engines' prefix caches; 0 where they differ, and none is simulated."""
    sizes = {profile.block_tokens for profile in fleet.profiles}
    return sizes.pop() if len(sizes) == 1 else 0


def _row(case: Case, traffic: Traffic, figures: RunFigures, warm_up_s: float, first_s: float | None) -> Row:
    counted_s = traffic.span_s / case.what_if.demand - warm_up_s
    sent_rps = (figures.ok + figures.errors) / counted_s if counted_s > 0.0 else None
    return Row(
        case=case.name,
        policy=case.policy,
        demand_rps=traffic.rate_rps * case.what_if.demand,
        load=load_of(case, traffic),
        over_first=figures.mean_s / first_s if figures.mean_s and first_s else None,
        figures=figures if case.fleet.sizes_matter else _without_ttft(figures),
        cells=[_cell(cell, traffic, figures.cell_shares[cell.name], sent_rps) for cell in case.fleet.plan.cells],
    )


def _without_ttft(figures: RunFigures) -> RunFigures:
    return structs.replace(figures, ttft_mean_s=None, ttft_p50_s=None, ttft_p95_s=None, ttft_p99_s=None)


def _cell(cell: CellPlan, traffic: Traffic, share: float, sent_rps: float | None) -> CellFigures:
    utilisation = None if sent_rps is None else share * sent_rps / capacity_of(cell, traffic)
    return CellFigures(cell.name, sum(server.weight for server in cell.servers), share, utilisation)
