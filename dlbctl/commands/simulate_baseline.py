"""`dlbctl simulate baseline`: policies side by side, as in the experiments of DLB's Appendix B."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlbctl.commands.output import note, show, show_json
from dlbctl.commands.simulation import InterruptedSimulationError, bar, writable
from dlbctl.core.errors import UsageError

if TYPE_CHECKING:
    from dlbctl.sim.baseline import Report, Step
    from dlbctl.sim.scenario import Disturbance, Recipe


_Scenarios = Annotated[int, typer.Option(min=1, help="Random networks of cells; the paper has 10.")]
_Trials = Annotated[int, typer.Option(min=1, help="Runs of each with other arrivals; the paper has 5.")]
_Duration = Annotated[float, typer.Option(metavar="S", help="Measured time of a run; the paper has 600.")]
_WarmUp = Annotated[float, typer.Option(metavar="S", help="Time before it, which is not measured.")]
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
_Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]
_Jobs = Annotated[int | None, typer.Option(min=1, help="Processes to run in. (default: one per core)")]
_Policies = Annotated[
    list[str] | None,
    typer.Option(metavar="POLICY[,...]", help="What to compare. (default: the paper's, and discrete)"),
]
_Interval = Annotated[float, typer.Option(metavar="S", help="Keep a series of latency, errors and RIF, for --json.")]
_Optimum = Annotated[bool, typer.Option("--optimum/--no-optimum", help="Sweep every cell, to tell the least latency.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line for each run.")]


def baseline(
    scenarios: _Scenarios = 4,
    trials: _Trials = 2,
    duration: _Duration = 120.0,
    warm_up: _WarmUp = 60.0,
    utilisation: _Utilisation = None,
    y: _Y = None,
    burst: _Burst = False,
    outage: _Outage = False,
    homogeneous: _Homogeneous = False,
    noise: _Noise = 0.0,
    seed: _Seed = 0,
    jobs: _Jobs = None,
    policies: _Policies = None,
    interval: _Interval = 0.0,
    optimum: _Optimum = True,
    as_json: _Json = False,
    csv: _Csv = None,
) -> None:
    """Run policies on random networks of cells, and set them against weighted random routing and the optimum.

    The defaults are shorter than the paper's experiments, which take hours. Ctrl-C reports what is complete,
    and the exit code is 130.
    """
    from dlbctl.sim.baseline import Experiment, compare
    from dlbctl.sim.contender import DEFAULTS, parse_contenders

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
    jobs = jobs or os.cpu_count() or 1
    with contextlib.ExitStack() as open_until_the_end:
        csv_file = open_until_the_end.enter_context(writable(csv)) if csv else None
        with _progress(jobs) as watch:
            report = compare(experiment, jobs=jobs, watch=watch)
        if csv_file:
            from dlbctl.sim.tables import write_csv

            write_csv(report, csv_file)
    _print(report, as_json=as_json)


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
        for u in _numbers("--utilisation", utilisations, Recipe().utilisation)
        for y in _numbers("--y", ys, Recipe().y)
    )


def _numbers(option: str, texts: list[str] | None, default: float) -> list[float]:
    numbers: list[float] = []
    for text in [part.strip() for words in texts or () for part in words.split(",")]:
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"{option} {text!r}: not a number", hint=f"for instance {option} 0.5,0.8") from None
        if number in numbers:
            raise UsageError(f"{option} {text}: given twice")
        numbers.append(number)
    return numbers or [default]


@contextlib.contextmanager
def _progress(jobs: int) -> Iterator[Callable[[Step], None]]:
    if sys.stderr.isatty():
        with bar() as tell:
            yield lambda step: tell(step.requests, step.requests_asked, f"{step.tasks}/{step.tasks_asked} runs")
    else:
        yield lambda step: None if step.tasks else note(_announced(step, jobs))


def _announced(step: Step, jobs: int) -> str:
    return (
        f"{step.tasks_asked} runs of {step.requests_asked:.3g} requests in all, {min(jobs, step.tasks_asked)} at a time"
    )


def _print(report: Report, *, as_json: bool) -> None:
    from dlbctl.sim.tables import tables

    if as_json:
        show_json(report)
    else:
        show(*tables(report))
    if not report.complete:
        raise InterruptedSimulationError(
            f"interrupted: {report.pairs} of {report.pairs_asked} scenario trials are complete, and are reported"
        )
