"""What a cell of disaggregated servers can do, measured: its latency curve, and the least latency of all routings.

Such a server has no closed form. So each kind of cell is run alone at several loads, by the same world and leaf as in
a scenario, without a network. What it takes at each load is a point (N/k, latency) by Little's law, and the curve is
fitted to these as a leaf fits its own. The equilibrium program on these curves is the optimum of the fluid model: a
reference and no bound, since a stochastic run that knows where queues are can be a little under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from random import Random

import msgspec

from dlbctl.core.bins import Bin
from dlbctl.core.curve import Curve
from dlbctl.core.errors import DlbctlError
from dlbctl.core.fit import CurveFit
from dlbctl.sim.arrivals import poisson
from dlbctl.sim.equilibrium import optimum
from dlbctl.sim.measurement import Measurement
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.plan import CellPlan, WorldPlan
from dlbctl.sim.scenario import HARDWARE, Phase, Purpose, Recipe, Scenario, Site, seed_of
from dlbctl.sim.trial import sizes
from dlbctl.sim.world import World

# Of capacity. Beyond the last one queues take longer to settle than a run of this length.
_LOADS = (0.1, 0.4, 0.6, 0.7, 0.8, 0.87, 0.93)
_REQUESTS = 4_000
_WARM_UP = 0.25  # the share of them that is not measured
# Queues remember: so many requests of a busy cell are worth one that was drawn independently.
_REQUESTS_PER_SAMPLE = 20.0
_PROBE_INTERVAL_S = 10.0  # there is one cell to choose, whatever is known of it
_CV = 0.5  # of latencies, about: weighs the points against the fit's weak prior


@dataclass(frozen=True, slots=True)
class Sweep:
    """A kind of cell to be swept. Its times are those at y = 1: others are the same in another unit of time."""

    recipe: Recipe
    prefill_s: float
    decode_s: float
    servers: int
    seed: int

    @property
    def requests(self) -> float:
        """How many it takes."""
        return float(_REQUESTS * len(_LOADS))


def sweep_of(recipe: Recipe, site: Site, servers: int, seed: int) -> Sweep:
    """The sweep of a cell as it is with so many servers; equal cells have equal ones, in whatever experiment."""
    alike = Recipe(**{name: getattr(recipe, name) for name in HARDWARE})
    # Twelve digits: y divided the times, and what is multiplied back may differ in the last.
    prefill_s, decode_s = (float(f"{time_s * recipe.y:.12g}") for time_s in (site.prefill_s, site.decode_s))
    return Sweep(alike, prefill_s, decode_s, servers, seed)


def sweeps_of(scenario: Scenario, seed: int) -> dict[Sweep, None]:
    """All that its optimum takes, each once."""
    return dict.fromkeys(
        sweep_of(scenario.recipe, site, servers, seed)
        for phase in scenario.phases
        for site, servers in zip(scenario.sites, phase.servers, strict=True)
    )


def curve_of(sweep: Sweep) -> Curve:
    """Measure the points and fit the curve. DlbctlError if they make none."""
    fit = CurveFit([*(_point(sweep, load) for load in _LOADS), _saturated(sweep)])
    while not fit.step():
        pass
    fitted = fit.result()
    if fitted.curve is None:
        raise DlbctlError(f"a sweep of cells came to no latency curve: {fitted.reason}", hint="use --no-optimum")
    return fitted.curve


def _point(sweep: Sweep, load: float) -> Bin:
    recipe, servers = sweep.recipe, sweep.servers
    rate_rps = load * servers * recipe.capacity(sweep.prefill_s, sweep.decode_s)
    plan = WorldPlan(
        cells=(
            CellPlan(
                "cell",
                servers=(recipe.server(sweep.prefill_s, sweep.decode_s),) * servers,
                slots=recipe.server_limit,
            ),
        ),
        sources=("source",),
        one_way_s={("source", "cell"): 0.0},
        probe_interval_s=_PROBE_INTERVAL_S,
        seed=seed_of(sweep.seed, 0, 0, Purpose.WORLD),
    )
    until_s = _REQUESTS / rate_rps
    from_s = until_s * _WARM_UP
    measured = Measurement(["cell"], from_s=from_s, until_s=until_s)
    rng = Random(seed_of(sweep.seed, 0, 0, Purpose.CALIBRATION))  # noqa: S311 - no secret
    arrivals = takewhile(lambda request: request.at_s < until_s, poisson(rng, [rate_rps], sizes(recipe)))
    World(plan, arrivals, measured).finish(2.0 * until_s)
    figures = measured.figures()
    assert figures.mean_s is not None
    in_flight = figures.mean_s * figures.ok / (until_s - from_s)
    return Bin(in_flight / servers, figures.mean_s, figures.ok / _REQUESTS_PER_SAMPLE, _CV)


def _saturated(sweep: Sweep) -> Bin:
    """What needs no run: full servers serve what they can bear. Else the fit would guess where throughput ends."""
    n = float(sweep.recipe.server_limit)
    latency_s = n / sweep.recipe.capacity(sweep.prefill_s, sweep.decode_s)
    return Bin(n, latency_s, _REQUESTS / _REQUESTS_PER_SAMPLE, _CV)


def optimum_s(scenario: Scenario, seed: int, curves: Mapping[Sweep, Curve]) -> float | None:
    """Least mean latency of the fluid model [s], over the phases of a run; None where one has no steady state.

    None as well while curves are missing.
    """
    ends = [phase.begins for phase in scenario.phases[1:]] + [1.0]
    requests = latency = 0.0
    for phase, end in zip(scenario.phases, ends, strict=True):
        least_s = _least_s(scenario, phase, seed, curves)
        if least_s is None:
            return None
        weight = sum(phase.demand) * (end - phase.begins)
        requests += weight
        latency += weight * least_s
    return latency / requests


def _least_s(scenario: Scenario, phase: Phase, seed: int, curves: Mapping[Sweep, Curve]) -> float | None:
    recipe = scenario.recipe
    cells: list[Cell] = []
    for site, servers in zip(scenario.sites, phase.servers, strict=True):
        curve = curves.get(sweep_of(recipe, site, servers, seed))
        if curve is None:
            return None
        in_its_time = msgspec.structs.replace(curve, a=curve.a / recipe.y, b=curve.b / recipe.y)
        cells.append(Cell(site.name, servers, in_its_time))
    try:
        network = Network(tuple(cells), dict(zip(scenario.names, phase.demand, strict=True)), scenario.one_way_s())
        return optimum(network).mean_latency_s
    except DlbctlError:  # an outage may leave less than is asked for
        return None
