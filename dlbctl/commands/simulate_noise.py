"""`dlbctl simulate noise`: how policies bear errors of the curves that they go by, as in DLB's section 5.4."""

from __future__ import annotations

from typing import Annotated

import typer

from dlbctl.commands import experiment as common
from dlbctl.commands.experiment import Csv, Duration, Jobs, Json, Policies, Scenarios, Seed, Trials, WarmUp
from dlbctl.commands.output import show, show_json
from dlbctl.commands.simulation import numbers

_Noise = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EPS[,EPS...]",
        help="Multiply each cell's curve parameters by 1 ± EPS; 0 is always there. (default: 0, 0.1, 0.3, 0.5)",
    ),
]
_Utilisation = Annotated[float, typer.Option(metavar="U", help="Demand over capacity.")]
_Y = Annotated[float, typer.Option("--y", metavar="Y", help="Requests this much shorter and more frequent.")]


def noise(
    noise: _Noise = None,
    scenarios: Scenarios = 4,
    trials: Trials = 2,
    duration: Duration = 120.0,
    warm_up: WarmUp = 60.0,
    utilisation: _Utilisation = 0.8,
    y: _Y = 1.0,
    seed: Seed = 0,
    jobs: Jobs = None,
    policies: Policies = None,
    as_json: Json = False,
    csv: Csv = None,
) -> None:
    """Run policies on random networks where every cell reports a curve that is wrong by a factor of its own.

    The networks and requests are the same with each amount of error, from none on. Ctrl-C reports what is complete,
    and the exit code is 130.
    """
    from dlbctl.sim.baseline import Experiment
    from dlbctl.sim.contender import parse_contenders
    from dlbctl.sim.noise import NOISES, POLICIES, noise_report
    from dlbctl.sim.scenario import Recipe
    from dlbctl.sim.tables import noise_tables

    amounts = numbers("--noise", noise) or NOISES
    report = common.run(
        Experiment(
            recipes=tuple(Recipe(utilisation=utilisation, y=y, noise=eps) for eps in sorted({0.0, *amounts})),
            contenders=parse_contenders(policies or list(POLICIES)),
            scenarios=scenarios,
            trials=trials,
            duration_s=duration,
            warm_up_s=warm_up,
            seed=seed,
            optimum=False,
        ),
        jobs,
        csv,
    )
    made = noise_report(report)
    if as_json:
        show_json(made)
    else:
        show(*noise_tables(made))
    common.end(report)
