"""Where simulated flows settle, against the equilibria that are solved; and what a fit learns of a known cell."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from random import Random
from statistics import fmean

import numpy as np
import pytest
from msgspec.structs import replace

from dlbctl.core.curve import Curve
from dlbctl.core.settings import FlowSettings
from dlbctl.sim.arrivals import poisson
from dlbctl.sim.equilibrium import COSTS, Equilibrium, certified, equilibrium
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.plan import MODEL, CellPlan, MultiPlan, RatePlan, ServerPlan, WorldPlan
from dlbctl.sim.world import World
from tests.sim.worlds import Notes, mean_and_error, watched

# -- flows ---------------------------------------------------------------------------------------------------

# Three cells that differ in speed and size: servers, and their curve in units of the fastest's.
SIZES = {"a": 40.0, "b": 56.0, "c": 32.0}
CURVES = {
    "a": Curve(a=0.40, b=0.048, c=6.0, s=1.5, version=1, samples=1000.0),
    "b": Curve(a=0.64, b=0.080, c=5.0, s=1.0, version=1, samples=1000.0),
    "c": Curve(a=0.32, b=0.044, c=4.0, s=1.0, version=1, samples=1000.0),
}
ONE_WAY_S = {
    ("x", "a"): 0.005,
    ("x", "b"): 0.03,
    ("x", "c"): 0.06,
    ("y", "a"): 0.05,
    ("y", "b"): 0.01,
    ("y", "c"): 0.02,
}


@dataclass
class Tally:
    """An observer that keeps sums for the time after it is told to begin."""

    begins_s: float

    def __post_init__(self) -> None:
        self.latencies_s: list[float] = []
        self.sent = Counter[tuple[int, int]]()

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
        assert status == 200
        if arrived_s >= self.begins_s:
            self.latencies_s.append(latency_s)
            self.sent[source, cell] += 1


def network(busy: float, size: float) -> Network:
    """The cells at so much of their capacity, with so much of their servers."""
    cells = tuple(Cell(name, SIZES[name] * size, CURVES[name]) for name in SIZES)
    capacity_rps = sum(cell.capacity_rps for cell in cells)
    return Network(cells, {"x": 0.4 * busy * capacity_rps, "y": 0.6 * busy * capacity_rps}, ONE_WAY_S)


def settled(network: Network, cost: str, stepsize: float, begins_s: float, ends_s: float) -> tuple[Equilibrium, Tally]:
    """The routing that a flow has come to, in the fluid model, and what was measured. Curves are told, not fitted."""
    cells = tuple(
        CellPlan(cell.name, (RatePlan(CURVES[cell.name], weight=cell.servers),), curve=CURVES[cell.name])
        for cell in network.cells
    )
    plan = WorldPlan(cells=cells, sources=("x", "y"), one_way_s=ONE_WAY_S, policy=f"flow/{cost}", seed=1)
    tally = Tally(begins_s)
    world = World(plan, poisson(Random(1), list(network.demand)), tally)
    for root in world.roots:
        endpoint = root.tier.endpoints[MODEL]
        root.tier.endpoints_changed([replace(endpoint.settings, flow=FlowSettings(stepsize))])
    world.run(ends_s)
    counts = np.array([[tally.sent[source, cell] for cell in range(3)] for source in range(2)], dtype=float)
    return certified(network, COSTS[cost], counts / counts.sum(axis=1, keepdims=True)), tally


# By the mean latency to all cells eta would be .34. It is meant for costs in seconds that are moderate: RIF is of the
# order of 7, and 1/mu' at 80 % several times what it is at 70 %. Both make a loop of more gain, which swings.
DEFAULT, SMALL, SMALLEST = 0.0, 0.1, 0.01


@pytest.mark.parametrize("cost", ["gradient", "latency"])
def test_flow_comes_to_the_shares_of_its_equilibrium(cost: str) -> None:
    """A quarter of the servers, after 60 s at 65 %: the shares of 70 s, in the fluid model.

    3 %: with fewer servers loads swing more, and shares with them; loads themselves go with the shares several fold.
    """
    small = network(0.65, 0.25)
    reached, tally = settled(small, cost, DEFAULT, 60.0, 130.0)
    expected = equilibrium(small, COSTS[cost])
    assert len(tally.latencies_s) > 20_000
    assert reached.mean_latency_s == pytest.approx(expected.mean_latency_s, rel=0.03)
    assert reached.in_flight == pytest.approx(expected.in_flight, rel=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "busy", "stepsize"),
    [("gradient", 0.7, DEFAULT), ("gradient", 0.75, SMALL), ("latency", 0.7, DEFAULT), ("rif", 0.7, SMALLEST)],
)
def test_flow_has_the_latency_of_its_equilibrium(cost: str, busy: float, stepsize: float) -> None:
    """3 %, with a standard error under 1 %, measured for 200 s after 160 s in which it settles.

    Cells have 32 servers and more: with a quarter of that chance makes queues that cost some 4 % at 80 %.
    """
    whole = network(busy, 1.0)
    reached, tally = settled(whole, cost, stepsize, 160.0, 360.0)
    expected = equilibrium(whole, COSTS[cost])
    assert reached.mean_latency_s == pytest.approx(expected.mean_latency_s, rel=0.015)
    mean_s, error_s = mean_and_error(tally.latencies_s, batches=20)
    assert error_s < 0.01 * mean_s
    assert mean_s == pytest.approx(expected.mean_latency_s, rel=0.03)


# -- fits ----------------------------------------------------------------------------------------------------

# The error of l that 24 bins were measured to leave at 2,000 samples with a CV of .8; it goes with CV over the root of
# their number.
MEASURED_ERROR, MEASURED_SAMPLES, MEASURED_CV = 0.024, 2000.0, 0.8
MEASURED_LOG_GRADIENT = 0.29
LAW = CURVES["a"]
K = 16.0
RATE_RPS = 0.7 * K * LAW.capacity_per_server()
MOST = 1000


def mean_sojourns_s() -> list[float]:
    """Mean time in the rate cell of a request that finds 0, 1, ... others there.

    Among n in all, the next event is an arrival, its own end, or somebody else's. It is not l(n): a cell that is
    fuller than usual empties meanwhile.
    """
    system = np.zeros((MOST, MOST))
    for row in range(MOST):
        n = row + 1
        ends_rps = K * LAW.rate_per_server(n / K)
        comes_rps = RATE_RPS if n < MOST else 0.0
        system[row, row] = comes_rps + ends_rps
        if n < MOST:
            system[row, row + 1] = -comes_rps
        if n > 1:
            system[row, row - 1] = -ends_rps * (n - 1) / n
    return [float(value) for value in np.linalg.solve(system, np.ones(MOST))]


@dataclass(frozen=True)
class Learned:
    """A fitted curve, and what the requests found that it was to tell the latency of."""

    curve: Curve
    k: float
    found: list[int]
    by_found: dict[int, list[float]]

    def error(self, truth_s: Callable[[int], float]) -> float:
        """Root mean square of the curve's relative error, over the loads as they were met."""
        return sqrt(fmean((self.curve.latency_s(n / self.k) / truth_s(n) - 1.0) ** 2 for n in self.found))

    @property
    def cv(self) -> float:
        """Of latencies at one load."""
        often = [values for values in self.by_found.values() if len(values) > 200]
        return fmean(float(np.std(values) / np.mean(values)) for values in often)

    @property
    def measured_error(self) -> float:
        """What was measured for so many samples that vary so much."""
        return MEASURED_ERROR * self.cv / MEASURED_CV * sqrt(MEASURED_SAMPLES / self.curve.samples)


def learned(server: ServerPlan, rate_rps: float, seed: int) -> Learned:
    """What a leaf knows of its only server after 200 s, the sample store being full."""
    plan = WorldPlan(
        cells=(CellPlan("a", (server,)),),
        sources=("here",),
        one_way_s={("here", "a"): 0.0},
        probe_interval_s=1.0,
        seed=seed,
    )
    world, notes = watched(plan, poisson(Random(seed), [rate_rps]))
    world.run(200.0)
    leaf = world.leaves[0].tier
    curve = leaf.estimators[MODEL].curve
    assert curve is not None
    return Learned(curve, leaf.endpoints[MODEL].k, *met(notes))


def met(notes: Notes) -> tuple[list[int], dict[int, list[float]]]:
    """How many each request found, and the latencies by that, the first fifth left out."""
    seen = notes.by_arrival
    went = sorted(one.at_s for one in seen)
    found = [number - bisect_right(went, one.arrived_s) for number, one in enumerate(seen)]
    by_found: dict[int, list[float]] = {}
    for n, one in list(zip(found, seen, strict=True))[len(seen) // 5 :]:
        by_found.setdefault(n, []).append(one.latency_s)
    return found[len(seen) // 5 :], by_found


def test_the_theory_of_sojourns_is_what_is_simulated() -> None:
    """What the tests of fits hold curves against is itself right: the mean latency at the loads that are common."""
    truth_s = mean_sojourns_s()
    cell = learned(RatePlan(LAW, weight=K), RATE_RPS, 1)
    common = [n for n, values in cell.by_found.items() if len(values) > 300]
    assert len(common) > 30
    ratios = [fmean(cell.by_found[n]) / truth_s[n] for n in common]
    # Means of 300 to 800 nearly exponential times, 5 % each.
    assert fmean(ratios) == pytest.approx(1.0, abs=0.03)
    assert max(abs(ratio - 1.0) for ratio in ratios) < 0.2
    assert cell.error(lambda n: truth_s[n]) < 2.0 * cell.measured_error


@pytest.mark.slow
def test_fits_of_a_known_cell_err_as_it_was_measured_to() -> None:
    """Eight seeds. Latencies at one load have a CV of 1.0, 1,460 samples count: 3.5 %, and .36 in ln(1/mu')."""
    truth_s = mean_sojourns_s()
    cells = [learned(RatePlan(LAW, weight=K), RATE_RPS, seed) for seed in range(8)]
    assert fmean(cell.cv for cell in cells) == pytest.approx(1.0, abs=0.05)
    assert cells[0].curve.samples == pytest.approx(1460, rel=0.03)
    measured = fmean(cell.measured_error for cell in cells)
    # A mean of eight, each of which varies by half of itself: 18 %.
    assert sqrt(fmean(cell.error(lambda n: truth_s[n]) ** 2 for cell in cells)) < 1.2 * measured
    mean_n = round(fmean(cells[0].found))
    slope = 2.0 / ((mean_n + 1) / truth_s[mean_n + 1] - (mean_n - 1) / truth_s[mean_n - 1])
    off = [log(cell.curve.gradient_s(mean_n / K) / slope) for cell in cells]
    assert sqrt(fmean(value**2 for value in off)) < 1.4 * MEASURED_LOG_GRADIENT * measured / MEASURED_ERROR


@pytest.mark.slow
def test_fits_of_a_queue_with_a_corner_round_it() -> None:
    """M/M/k has l(n) = s up to k - 1 and s (n + 1) / k from there, which the form has but for the corner itself.

    Four seeds, CV .8: 2.5 % as measured, and as much again for what is rounded off at the load that is most common.
    """
    mean_s, workers = 0.05, 10

    def truth_s(found: int) -> float:
        return mean_s * max(1.0, (found + 1) / workers)

    cells = [learned(MultiPlan(mean_s, workers=workers), 0.8 * workers / mean_s, seed) for seed in range(1, 5)]
    assert fmean(cell.cv for cell in cells) == pytest.approx(0.8, abs=0.05)
    assert sqrt(fmean(cell.error(truth_s) ** 2 for cell in cells)) < 0.065
