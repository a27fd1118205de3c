"""What `dlbctl simulate baseline` and `dlbctl simulate noise` have in common: options, and how they run and end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlbctl.commands.output import note
from dlbctl.commands.simulation import InterruptedSimulationError, bar, writable

if TYPE_CHECKING:
    from dlbctl.sim.baseline import Experiment, Report, Step

Scenarios = Annotated[int, typer.Option(min=1, help="Random networks of cells; the paper has 10.")]
Trials = Annotated[int, typer.Option(min=1, help="Runs of each with other arrivals; the paper has 5.")]
Duration = Annotated[float, typer.Option(metavar="S", help="Measured time of a run; the paper has 600.")]
WarmUp = Annotated[float, typer.Option(metavar="S", help="Time before it, which is not measured.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes to run in. (default: one per core)")]
Policies = Annotated[
    list[str] | None,
    typer.Option(metavar="POLICY[,...]", help="What to compare. (default: the policies of the paper's experiment)"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line for each run.")]


def run(experiment: Experiment, jobs: int | None, csv: Path | None) -> Report:
    """Run an experiment, and say on stderr how far it is. The file of `--csv` is opened before, and filled after."""
    from dlbctl.sim.baseline import compare
    from dlbctl.sim.tables import write_csv

    jobs = jobs or os.cpu_count() or 1
    with contextlib.ExitStack() as open_until_the_end:
        csv_file = open_until_the_end.enter_context(writable(csv)) if csv else None
        with _progress(jobs) as watch:
            report = compare(experiment, jobs=jobs, watch=watch)
        if csv_file:
            write_csv(report, csv_file)
    return report


def end(report: Report) -> None:
    """Say that it was interrupted if it was; the exit code is 130 then."""
    if not report.complete:
        raise InterruptedSimulationError(
            f"interrupted: {report.pairs} of {report.pairs_asked} scenario trials are complete, and are reported"
        )


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
