"""Cases side by side: each policy with the fleet as it is and as it would be, on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from msgspec import Struct, structs

from dlbctl.engine.sweep import capacity_rps
from dlbctl.sim.arrivals import Request
from dlbctl.sim.contender import Contender
from dlbctl.sim.measurement import Measurement
from dlbctl.sim.plan import BatchingPlan, CellPlan, RatePlan, ServerPlan, WorldPlan
from dlbctl.sim.statistics import RunFigures
from dlbctl.sim.whatif.changes import WhatIf
from dlbctl.sim.whatif.fleet import Fleet
from dlbctl.sim.whatif.traffic import Traffic
from dlbctl.sim.work import steps_of
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

    Utilisation is that of requests of the mean size, of which no prefix is cached, in the part of the run that counts;
    what a cell serves at most that changes or is lost meanwhile is the mean over that time.
    """

    cell: str
    servers: float
    share: float
    utilisation: float | None


class Row(Struct, frozen=True):
    """One case's outcome. load: demand over what all cells serve, both of the part of the run that counts, None where
    that is an instant. over_first: its mean latency over the first row's.
    """

    case: str
    policy: str
    demand_rps: float | None
    load: float | None
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
        Case(policy, replace(changed, plan=_routed(changed.plan, policy)), otherwise)
        for changed, otherwise in pairs
        for policy in policies or [fleet.plan.policy]
    ]
    for case in cases:
        case.fleet.plan.check()
    return cases


def _routed(plan: WorldPlan, text: str) -> WorldPlan:
    """With that policy, and its stepsize where it says one."""
    contender = Contender.parse(text, option="--policy")
    flow = structs.replace(plan.flow, stepsize=contender.stepsize) if contender.stepsize else plan.flow
    return replace(plan, policy=contender.policy, flow=flow)


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


def steps_of_case(case: Case, traffic: Traffic) -> float:
    """How much work it is at most."""
    plan = case.fleet.plan
    return steps_of(
        rounds=(traffic.span_s / case.what_if.demand + _DRAIN_S) / plan.probe_interval_s,
        sources=len(plan.sources),
        cells=len(plan.cells),
        servers=max(sum(len(cell.servers) for cell in changed.cells) for _, changed in _plans(case)),
        requests=len(traffic.rows),
    )


def peak_load_of(case: Case, traffic: Traffic) -> float:
    """Demand of the whole run over the capacity of all cells when that is least; 0 of a single instant."""
    least_rps = min(sum(capacity_of(cell, traffic) for cell in plan.cells) for _, plan in _plans(case))
    return traffic.rate_rps * case.what_if.demand / least_rps


def _plans(case: Case) -> list[tuple[float, WorldPlan]]:
    """What the fleet is, from which second of the run on."""
    plan = case.fleet.plan
    plans = [(0.0, plan)]
    for change in sorted(case.what_if.later, key=lambda change: change.at_s or 0.0):
        plan = change.planned(plan)
        plans.append((change.at_s or 0.0, plan))
    return plans


def _mean_capacity_rps(case: Case, traffic: Traffic, from_s: float, until_s: float) -> dict[str, float]:
    """What each cell serves at most a second, on average over a part of the run."""
    means = dict.fromkeys((cell.name for cell in case.fleet.plan.cells), 0.0)
    plans = _plans(case)
    ends_s = [begins_s for begins_s, _ in plans[1:]] + [inf]
    for (begins_s, plan), end_s in zip(plans, ends_s, strict=True):
        part = max(min(end_s, until_s) - max(begins_s, from_s), 0.0) / (until_s - from_s)
        for cell in plan.cells:
            means[cell.name] += part * capacity_of(cell, traffic)
    return means


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
    until_s = traffic.span_s / case.what_if.demand
    counted_s = until_s - warm_up_s
    demand_rps = figures.requests / counted_s if counted_s > 0.0 else None
    capacity_rps = _mean_capacity_rps(case, traffic, warm_up_s, until_s) if demand_rps is not None else {}
    return Row(
        case=case.name,
        policy=case.policy,
        demand_rps=demand_rps,
        load=demand_rps / sum(capacity_rps.values()) if demand_rps is not None else None,
        over_first=figures.mean_s / first_s if figures.mean_s and first_s else None,
        figures=figures if case.fleet.sizes_matter else _without_ttft(figures),
        cells=[
            _cell(cell, figures.cell_shares[cell.name], demand_rps, capacity_rps.get(cell.name, 0.0))
            for cell in case.fleet.plan.cells
        ],
    )


def _without_ttft(figures: RunFigures) -> RunFigures:
    return structs.replace(figures, ttft_mean_s=None, ttft_p50_s=None, ttft_p95_s=None, ttft_p99_s=None)


def _cell(cell: CellPlan, share: float, demand_rps: float | None, capacity_rps: float) -> CellFigures:
    used = share * demand_rps / capacity_rps if demand_rps is not None and capacity_rps > 0.0 else None
    return CellFigures(cell.name, sum(server.weight for server in cell.servers), share, used)
