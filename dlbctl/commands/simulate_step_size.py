"""`dlbctl simulate step-size`: how far flow routing is from its equilibrium, by stepsize and horizon."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from dlbctl.commands.output import note, show, show_json
from dlbctl.commands.simulation import (
    InterruptedSimulationError,
    bar,
    check_positive,
    network_of,
    numbers,
    writable,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dlbctl.sim.step_size import Averages, StepSizeReport

_File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[NETWORK.toml]", help="Cells, sources and delays. Without it, an example of three regions."
    ),
]
_Policy = Annotated[str, typer.Option(metavar="flow/COST", help="On `gradient`, `latency` or `rif`.")]
_Stepsizes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ETA[,ETA...]",
        help="1/s² for costs in seconds. (default: parts and multiples of the one at which swinging begins)",
    ),
]
_Horizons = Annotated[
    list[str] | None, typer.Option(metavar="S[,S...]", help="(default: 20, and twice as many up to 640)")
]
_Factor = Annotated[
    float | None,
    typer.Option(
        metavar="KAPPA",
        help="Of the line ETA = KAPPA / sqrt(T). (default: begins at 1/16 of where swinging begins)",
    ),
]
_Utilisation = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Scale all demand to this part of what the cells serve together."),
]
_Jobs = Annotated[int | None, typer.Option(min=1, help="Processes to run in. (default: one per core)")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line for each stepsize and horizon.")]


def step_size(
    file: _File = None,
    policy: _Policy = "flow/gradient",
    stepsizes: _Stepsizes = None,
    horizons: _Horizons = None,
    factor: _Factor = None,
    utilisation: _Utilisation = None,
    jobs: _Jobs = None,
    as_json: _Json = False,
    csv: _Csv = None,
) -> None:
    """Average how far flow routing is from its equilibrium in the delayed fluid model: the paper's Theorem 1.

    Every run begins with the loads of the equilibrium and shares by number of servers. A small stepsize takes long to
    find the shares: the gap falls as 1 / (T ETA). A large one swings, because it sees loads late. Between them,
    on ETA = KAPPA / sqrt(T), the theorem's bound falls as 1 / sqrt(T).
    """
    from dlbctl.sim.step_size import HORIZONS_S, parse_cost, report

    parse_cost(policy)  # a slip of the command line is told before any file is read
    etas, horizons_s = numbers("--stepsizes", stepsizes), numbers("--horizons", horizons) or HORIZONS_S
    check_positive("--stepsizes", *etas)
    check_positive("--horizons", *horizons_s)
    check_positive("--factor", factor)
    network = network_of(file, utilisation)
    with contextlib.ExitStack() as open_until_the_end:
        csv_file = open_until_the_end.enter_context(writable(csv)) if csv else None
        with _progress() as watch:
            jobs = jobs or os.cpu_count() or 1
            made = report(network, policy, etas, horizons_s, factor, jobs=jobs, watch=watch)
        if csv_file:
            _write_csv(csv_file, made)
    if as_json:
        show_json(made)
    else:
        show(*_parts(made))
    if not made.complete:
        raise InterruptedSimulationError("interrupted: only what is complete is reported")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    if sys.stderr.isatty():
        with bar() as tell:
            yield lambda done, asked: tell(done, asked, f"{done}/{asked} runs")
    else:
        yield lambda done, asked: None if done else note(f"{asked} runs")


def _parts(made: StepSizeReport) -> Iterator[RenderableType]:
    from dlbctl.commands.tables import percent

    of_all = f", {percent(made.utilisation)} of what the cells serve" if made.utilisation else ""
    yield f"{made.demand_rps:.4g} requests/s{of_all}; {made.policy} in steps of {made.step_s:.2g} s"
    yield "it never swings" if made.onset is None else f"it swings from a stepsize of {made.onset:.3g} on"
    yield "\nmean workload gap [requests] up to T"
    yield _grid(made)
    yield f"\nalong a stepsize of {made.factor:.3g} / sqrt(T)"
    yield _line(made)
    if made.slope is not None:
        yield f"\nthe gap falls as T^{made.slope:.2f} along it"
    yield from _plot(made)


def _grid(made: StepSizeReport) -> RenderableType:
    from dlbctl.commands.tables import add, table

    horizons = [f"T = {horizon_s:g}" for horizon_s in dict.fromkeys(row.horizon_s for row in made.grid)]
    rows = table("STEPSIZE", "/ ONSET", *horizons, numbers=("STEPSIZE", "/ ONSET", *horizons))
    for eta in dict.fromkeys(row.stepsize for row in made.grid):
        of_onset = f"{eta / made.onset:.3g}" if made.onset else "-"
        gaps = (f"{row.gap:.3g}" for row in made.grid if row.stepsize == eta)
        add(rows, f"{eta:.3g}", of_onset, *gaps)
    return rows


def _line(made: StepSizeReport) -> RenderableType:
    from dlbctl.commands.tables import add, percent, table

    columns = ("T", "STEPSIZE", "GAP", "ADAPTATION TERM", "LOAD OFF", "DEMAND OFF")
    rows = table(*columns, numbers=columns)
    for row in made.line:
        figures = (f"{row.stepsize:.3g}", f"{row.gap:.3g}", f"{row.adaptation:.3g}")
        add(rows, f"{row.horizon_s:g} s", *figures, percent(row.load), percent(row.demand))
    return rows


def _plot(made: StepSizeReport) -> Iterator[RenderableType]:
    from dlbctl.commands.plots import log_plot

    series: dict[str, list[tuple[float, float]]] = {}
    for row in made.grid:
        series.setdefault(f"T = {row.horizon_s:g} s", []).append((row.stepsize, row.gap))
    if len({row.stepsize for row in made.grid}) > 1:
        yield ""
        yield log_plot(series, "stepsize", "gap")


def _write_csv(file: TextIO, made: StepSizeReport) -> None:
    import csv

    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("of", "stepsize", "horizon_s", "gap", "adaptation", "load", "demand"))
    for name, rows in (("grid", made.grid), ("line", made.line)):
        writer.writerows((name, *_figures(row)) for row in rows)


def _figures(row: Averages) -> Iterator[str]:
    for value in (row.stepsize, row.horizon_s, row.gap, row.adaptation, row.load, row.demand):
        yield f"{value:.6g}"
