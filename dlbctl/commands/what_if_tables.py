"""What `dlbctl simulate fleet` found, as tables for people and as lines of CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from dlbctl.commands.tables import NOTHING, add, percent, seconds, table
from dlbctl.core.names import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dlbctl.sim.whatif.compare import CellFigures, Row
    from dlbctl.sim.whatif.report import Report

_COUNTS = ("requests", "ok", "errors", "unfinished")
_TIMES = ("mean_s", "p50_s", "p95_s", "p99_s")
_FIRST_BYTE = ("ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s")


def what_if_parts(report: Report) -> Iterator[RenderableType]:
    """What was simulated, the cases side by side, the share of each cell, errors, and what was assumed."""
    yield (
        f"{counted(report.requests, 'request')} of {report.trace} over {seconds(report.span_s)}: "
        f"{report.prompt_tokens:.0f} tokens in and {report.output_tokens:.0f} out on average"
    )
    if report.warm_up_s:
        yield f"those of the first {seconds(report.warm_up_s)} are not in the figures"
    yield ""
    yield _latencies(report.rows)
    yield ""
    yield _cells(report.rows)
    yield "  share of the requests (of what the cell serves at most, nothing cached; of one that changes, on average)"
    yield from _errors(report.rows)
    yield from _beware(report.rows)
    for number, text in enumerate(report.assumed):
        yield f"{'' if number else chr(10)}assumed: {text}"
    yield from (f"left out: {count} rows, {reason}" for reason, count in report.left_out.items())


def _latencies(rows: list[Row]) -> RenderableType:
    numbers = (
        "DEMAND",
        "REQUESTS",
        "OK",
        "ERRORS",
        "MEAN",
        "P50",
        "P95",
        "P99",
        "TTFT",
        "P50 ",
        "P95 ",
        "P99 ",
        "OVER FIRST",
    )
    made = table("CASE", "POLICY", *numbers, numbers=numbers)
    for row in rows:
        figures = row.figures
        times = [seconds(getattr(figures, name)) for name in (*_TIMES, *_FIRST_BYTE)]
        over = NOTHING if row.over_first is None else f"{row.over_first:.3f}"
        counts = (percent(row.load), str(figures.requests), str(figures.ok), str(figures.errors + figures.unfinished))
        add(made, row.case, row.policy, *counts, *times, over)
    return made


def _cells(rows: list[Row]) -> RenderableType:
    names = list(dict.fromkeys(cell.cell for row in rows for cell in row.cells))
    made = table("CASE", "POLICY", *names, numbers=names)
    for row in rows:
        by_name = {cell.cell: cell for cell in row.cells}
        add(made, row.case, row.policy, *(_share(by_name.get(name)) for name in names))
    return made


def _share(cell: CellFigures | None) -> str:
    if cell is None:
        return NOTHING
    used = "" if cell.utilisation is None else f" ({cell.utilisation:.0%})"
    return percent(cell.share) + used


def _errors(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        counts = [f"{count} {code}" for code, count in row.figures.reasons.items()]
        if row.figures.unfinished:
            counts.append(f"{row.figures.unfinished} not over ten minutes after the last request")
        if counts:
            yield f"errors, {row.case}, {row.policy}: {', '.join(counts)}"


def _beware(rows: list[Row]) -> Iterator[str]:
    """Slow requests that fail leave the mean: a case that loses more of them looks better than it is."""
    from dlbctl.sim.statistics import unlike

    lost = [row.figures.lost_share for row in rows]
    if unlike(lost):
        yield (
            f"beware: latencies are those of requests that went well, and from {percent(min(lost))} to "
            f"{percent(max(lost))} did not: OVER FIRST compares unlike ones"
        )


def write_what_if_csv(report: Report, file: TextIO) -> None:
    """A line for each case; shares and utilisation have a column for each cell."""
    names = list(dict.fromkeys(cell.cell for row in report.rows for cell in row.cells))
    figures = (*_COUNTS, *_TIMES, *_FIRST_BYTE)
    writer = csv.writer(file, lineterminator="\n")
    of_cells = [f"{what}_{name}" for name in names for what in ("share", "utilisation")]
    writer.writerow(("case", "policy", "demand_rps", "load", "over_first", *figures, *of_cells))
    for row in report.rows:
        by_name = {cell.cell: cell for cell in row.cells}
        cells = [getattr(by_name.get(name), what, None) for name in names for what in ("share", "utilisation")]
        values = [getattr(row.figures, name) for name in figures]
        writer.writerow((row.case, row.policy, row.demand_rps, row.load, row.over_first, *values, *cells))
