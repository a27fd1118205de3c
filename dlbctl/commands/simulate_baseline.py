"""`dlbctl simulate baseline`: policies side by side, as in the experiments of DLB's Appendix B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dlbctl.commands import experiment as common
from dlbctl.commands.experiment import Csv, Duration, Jobs, Json, Policies, Scenarios, Seed, Trials, WarmUp
from dlbctl.commands.output import show, show_json
from dlbctl.commands.simulation import numbers
from dlbctl.core.errors import UsageError

if TYPE_CHECKING:
    from dlbctl.sim.scenario import Disturbance, Recipe


_Utilisation = Annotated[
    list[str] | None,
    typer.Option(metavar="U[,U...]", help="Demand over capacity; several for a table each. (default: 0.8)"),
]
_Y = Annotated[
    list[str] | None,
    typer.Option("--y", metavar="Y[,Y...]", help="Requests this much shorter and more frequent. (default: 1)"),
]
_Burst = Annotated[bool, typer.Option("--burst", help="One cell's demand takes the system to 95 % for a while.")]
_Outage = Annotated[bool, typer.Option("--outage", help="Cells keep one server until it is over 95 %, for a while.")]
_Homogeneous = Annotated[bool, typer.Option("--homogeneous", help="The same hardware in every cell.")]
_Noise = Annotated[float, typer.Option(metavar="EPS", help="Multiply each cell's curve parameters by 1 ± EPS.")]
_Interval = Annotated[float, typer.Option(metavar="S", help="Keep a series of latency, errors and RIF, for --json.")]
_Optimum = Annotated[bool, typer.Option("--optimum/--no-optimum", help="Sweep every cell, to tell the least latency.")]


def baseline(
    scenarios: Scenarios = 4,
    trials: Trials = 2,
    duration: Duration = 120.0,
    warm_up: WarmUp = 60.0,
    utilisation: _Utilisation = None,
    y: _Y = None,
    burst: _Burst = False,
    outage: _Outage = False,
    homogeneous: _Homogeneous = False,
    noise: _Noise = 0.0,
    seed: Seed = 0,
    jobs: Jobs = None,
    policies: Policies = None,
    interval: _Interval = 0.0,
    optimum: _Optimum = True,
    as_json: Json = False,
    csv: Csv = None,
) -> None:
    """Run policies on random networks of cells, and set them against weighted random routing and the optimum.

    The defaults are shorter than the paper's experiments, which take hours. Ctrl-C reports what is complete,
    and the exit code is 130.
    """
    from dlbctl.sim.baseline import Experiment
    from dlbctl.sim.contender import DEFAULTS, parse_contenders
    from dlbctl.sim.tables import tables

    experiment = Experiment(
        recipes=_recipes(utilisation, y, _disturbance(burst, outage), homogeneous, noise),
        contenders=parse_contenders(policies or list(DEFAULTS)),
        scenarios=scenarios,
        trials=trials,
        duration_s=duration,
        warm_up_s=warm_up,
        seed=seed,
        interval_s=interval,
        optimum=optimum,
    )
    report = common.run(experiment, jobs, csv)
    if as_json:
        show_json(report)
    else:
        show(*tables(report))
    common.end(report)


def _disturbance(burst: bool, outage: bool) -> Disturbance:
    if burst and outage:
        raise UsageError("--burst and --outage are two experiments: give one")
    return "burst" if burst else "outage" if outage else "none"


def _recipes(
    utilisations: list[str] | None, ys: list[str] | None, disturbance: Disturbance, homogeneous: bool, noise: float
) -> tuple[Recipe, ...]:
    """One for each utilisation and y."""
    from dlbctl.sim.scenario import Recipe

    spread = 0.0 if homogeneous else Recipe().token_time_sd
    return tuple(
        Recipe(utilisation=u, y=y, disturbance=disturbance, token_time_sd=spread, noise=noise)
        for u in numbers("--utilisation", utilisations) or [Recipe().utilisation]
        for y in numbers("--y", ys) or [Recipe().y]
    )
