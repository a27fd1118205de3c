"""The paper's Theorem 1 in numbers: how far from equilibrium flow routing is on average, by stepsize and horizon.

The paper measures distance by the workload gap, by how much costs and rates together are off:

    D(t) = Σ_j (f_j(N_j) - f_j(N_j*)) (μ_j(N_j) - μ_j(N_j*))    [requests, for costs in seconds]

Without delays, what is left of the Lyapunov function Σ_i λ_i/(2η) |x_i - x_i*|² + Σ_j ∫ (f_j - f_j*) dN falls at least
as fast as D adds up. So the mean of D over T is at most the adaptation term Σ_i λ_i/2 |x_i(0) - x_i*|² / (T η), if the
loads start where they end, as here: only shares have to be found. Delays add a penalty that grows with η.

The formula of D is lost in our text of the paper. This one has the two properties that its proofs use: it is what the
Lyapunov function loses, and far out f_j is at most 2 / (sup μ_j - μ_j*) times D_j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from dlbctl.core.errors import UsageError
from dlbctl.sim.equilibrium import COSTS, Cost, Equilibrium, equilibrium
from dlbctl.sim.fluid import State, Trajectory, default_step_s, default_stepsizes, flow, integrate
from dlbctl.sim.network import Array, Network, utilisation
from dlbctl.sim.processes import Outcome, run_all
from dlbctl.sim.stability import Linearised

# Of the onset of swinging, or of what routers choose where nothing ever swings.
STEPSIZES = (1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
# η = κ T^-1/2 has this part of it at the shortest horizon: small enough that shares are slower than loads.
LINE_START = 1 / 16
HORIZONS_S = (20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


@dataclass(frozen=True, slots=True)
class Averages:
    """Means over the time from 0 to a horizon, with one stepsize [1/s² for costs in seconds] at every source.

    gap: D [requests]. adaptation: the bound's first term, which would bound the gap if nothing were late. load: part of
    all that is in flight by which loads differ from the equilibrium's. demand: part of the demand that cells get beyond
    the equilibrium's flows.
    """

    stepsize: float
    horizon_s: float
    gap: float
    adaptation: float
    load: float
    demand: float


@dataclass(frozen=True, slots=True)
class StepSizeReport:
    """All that `dlbctl simulate step-size` says.

    onset: the stepsize at which the model begins to swing, None if it never does; `safe`: up to which it certainly does
    not. grid: each stepsize at each horizon. line: at each horizon T the stepsize factor T^-1/2; slope: of its gaps, in
    logarithms. A run that was cut short is missing in both.
    """

    policy: str
    demand_rps: float
    utilisation: float
    step_s: float
    onset: float | None
    safe: float | None
    grid: list[Averages]
    factor: float
    line: list[Averages]
    slope: float | None
    complete: bool


@dataclass(frozen=True, eq=False)
class _Run:
    """One integration, whose averages are wanted at each of the horizons."""

    network: Network
    cost: str
    loads: Array
    flow_rps: Array
    adaptation_rps: float
    stepsize: float
    horizons_s: tuple[float, ...]


def parse_cost(policy: str) -> Cost:
    """The cost of a flow policy, `flow/gradient` for instance."""
    mechanism, _, cost = policy.partition("/")
    if mechanism != "flow" or cost not in COSTS:
        known = ", ".join(f"flow/{name}" for name in COSTS)
        raise UsageError(f"--policy: {policy!r} is not what the theorem is about", hint=f"one of: {known}")
    return COSTS[cost]


def report(
    network: Network,
    policy: str,
    stepsizes: Sequence[float] = (),
    horizons_s: Sequence[float] = HORIZONS_S,
    factor: float | None = None,
    *,
    jobs: int,
    watch: Callable[[int, int], None],
) -> StepSizeReport:
    """Integrate every stepsize, and the line. Ctrl-C ends it with what is done.

    By default stepsizes and factor follow from the onset of swinging. `watch` hears of how many runs how many are done.
    """
    cost = parse_cost(policy)
    found = equilibrium(network, cost)
    ones = np.ones(len(network.sources))
    linear = Linearised(network, found, ones)
    onset, safe = linear.onset().factor, linear.safe_stepsize()
    unit = onset if onset < inf else float(default_stepsizes(network).mean())
    horizons_s = tuple(sorted(horizons_s))
    factor = factor or LINE_START * unit * sqrt(horizons_s[0])
    grid = [(eta, horizons_s) for eta in sorted(stepsizes or (part * unit for part in STEPSIZES))]
    line = [(factor / sqrt(horizon_s), (horizon_s,)) for horizon_s in horizons_s]
    runs = [_run(network, found, eta, until_s) for eta, until_s in grid + line]
    done = _integrated(runs, jobs, watch)
    of_line = [row for number in range(len(grid), len(runs)) for row in done.results.get(number, ())]
    return StepSizeReport(
        policy=policy,
        demand_rps=float(network.demand.sum()),
        utilisation=utilisation(network),
        step_s=default_step_s(network),
        onset=onset if onset < inf else None,
        safe=safe if safe < inf else None,
        grid=[row for number in range(len(grid)) for row in done.results.get(number, ())],
        factor=factor,
        line=of_line,
        slope=_slope(of_line),
        complete=not done.interrupted,
    )


def _integrated(runs: Sequence[_Run], jobs: int, watch: Callable[[int, int], None]) -> Outcome[list[Averages]]:
    finished: list[int] = []

    def tell(number: int) -> None:
        finished.append(number)
        watch(len(finished), len(runs))

    return run_all(averages, runs, jobs=min(jobs, len(runs)), begun=lambda: watch(0, len(runs)), done=tell)


def _run(network: Network, found: Equilibrium, stepsize: float, horizons_s: tuple[float, ...]) -> _Run:
    off = ((network.by_servers - found.shares) ** 2).sum(axis=1)
    return _Run(
        network=network,
        cost=found.cost.name,
        loads=found.in_flight,
        flow_rps=found.flow_rps,
        adaptation_rps=float(network.demand @ off) / 2.0,
        stepsize=stepsize,
        horizons_s=horizons_s,
    )


def averages(run: _Run) -> list[Averages]:
    """Integrate from loads of the equilibrium and shares by servers, and average up to each horizon."""
    network = run.network
    start = State(run.loads, network.by_servers)
    rule = flow(np.full(len(network.sources), run.stepsize))
    way = integrate(network, COSTS[run.cost], rule, run.horizons_s[-1], start=start)
    gap = _gaps(network, COSTS[run.cost], run.loads, way)
    load = np.abs(way.in_flight - run.loads).sum(axis=1) / run.loads.sum()
    demand = np.abs(way.sent_rps - run.flow_rps).sum(axis=1) / (2.0 * network.demand.sum())
    return [
        Averages(
            stepsize=run.stepsize,
            horizon_s=horizon_s,
            gap=float(gap[way.time_s < horizon_s].mean()),
            adaptation=run.adaptation_rps / (horizon_s * run.stepsize),
            load=float(load[way.time_s < horizon_s].mean()),
            demand=float(demand[way.time_s < horizon_s].mean()),
        )
        for horizon_s in run.horizons_s
    ]


def _gaps(network: Network, cost: Cost, loads: Array, way: Trajectory) -> Array:
    """D at each time of a run."""
    costs, rates = cost.at(network, loads), network.rates_rps(loads)
    return np.array([(cost.at(network, n) - costs) @ (network.rates_rps(n) - rates) for n in way.in_flight])


def _slope(line: Sequence[Averages]) -> float | None:
    """Of the gap over the horizon, in logarithms; None for less than two points."""
    if len(line) < 2 or min(row.gap for row in line) <= 0.0:
        return None
    return float(np.polyfit(np.log([row.horizon_s for row in line]), np.log([row.gap for row in line]), 1)[0])
