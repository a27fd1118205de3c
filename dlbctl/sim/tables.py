"""An experiment's report as tables for people and as lines of CSV."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, TextIO

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dlbctl.core.names import counted
from dlbctl.sim.statistics import unlike

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbctl.sim.baseline import Case, Report, Standing
    from dlbctl.sim.noise import NoiseReport
    from dlbctl.sim.statistics import Estimate

_COLUMNS = ("MEAN", "MEAN / RAND", "P90 / RAND", "P99 / RAND", "MEAN / OPTIMUM", "ERRORS")
_FIGURES = ("requests", "ok", "errors", "unfinished", "mean_s", "p50_s", "p90_s", "p95_s", "p99_s", "max_s")


def tables(report: Report) -> list[RenderableType]:
    """A table for each case, and what its figures are."""
    parts: list[RenderableType] = []
    for case in report.cases:
        parts += [_heading(report, case), _table(case), Text("")]
    if any(unlike([one.error_share.mean for one in case.standings if one.error_share]) for case in report.cases):
        parts.append(Text("Beware: latencies are those of requests that went well; with more errors they look better."))
    parts.append(Text("Ratios are to weighted-random with the same arrivals; ± is the half of a 95 % interval."))
    return parts


def _heading(report: Report, case: Case) -> Text:
    recipe, experiment = case.recipe, report.experiment
    words = [f"utilisation {recipe.utilisation:.0%}", f"y = {recipe.y:g}"]
    if recipe.token_time_sd == 0:
        words.append("equal hardware")
    if recipe.disturbance != "none":
        low, high = min(case.peak_utilisation), max(case.peak_utilisation)
        words.append(f"{recipe.disturbance} to {low:.0%}" + (f"..{high:.0%}" if f"{low:.0%}" != f"{high:.0%}" else ""))
    if recipe.noise:
        words.append(f"curve noise {recipe.noise:g}")
    trials = len(case.trials) // len(experiment.contenders)
    scenarios = len({row.scenario for row in case.trials})
    words.append(f"{counted(trials, 'run')} in {counted(scenarios, 'scenario')}")
    return Text(", ".join(words), "bold")


def _table(case: Case) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POLICY", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for standing in case.standings:
        table.add_row(standing.policy, *_cells(standing))
    return table


def _cells(standing: Standing) -> list[str]:
    ratios = (standing.mean, standing.p90, standing.p99, standing.to_optimum)
    mean_s, errors = standing.mean_s, standing.error_share
    return [
        f"{mean_s.mean * 1e3:.0f} ms" if mean_s else "-",
        *(_with_interval(ratio, 1.0, 3) for ratio in ratios),
        _with_interval(errors, 100.0, 2) + (" %" if errors else ""),
    ]


def _with_interval(value: Estimate | None, scale: float, digits: int) -> str:
    if value is None:
        return "-"
    if value.high is None:
        return f"{value.mean * scale:.{digits}f}"
    return f"{value.mean * scale:.{digits}f} ±{(value.high - value.mean) * scale:.{digits}f}"


def noise_tables(made: NoiseReport) -> list[RenderableType]:
    """Policies by noise: two ratios to weighted-random, the errors, and the ratio to the same policy without noise."""
    cases = made.report.cases
    degraded = {(one.policy, one.noise): _with_interval(one.mean, 1.0, 3) for one in made.degradations}
    standing = {(one.policy, case.recipe.noise): one for case in cases for one in case.standings}
    shown: dict[str, Callable[[tuple[str, float]], str]] = {
        "mean / Rand": lambda at: _with_interval(standing[at].mean, 1.0, 3),
        "p90 / Rand": lambda at: _with_interval(standing[at].p90, 1.0, 3),
        "errors [%]": lambda at: _with_interval(standing[at].error_share, 100.0, 2),
        "mean / without noise": lambda at: degraded[at],
    }
    parts: list[RenderableType] = []
    for title, cell in shown.items():
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("POLICY", no_wrap=True)
        for case in cases:
            table.add_column(f"NOISE {case.recipe.noise:g}", justify="right", no_wrap=True)
        for policy in dict.fromkeys(policy for policy, _ in standing):
            table.add_row(policy, *(cell((policy, case.recipe.noise)) for case in cases))
        parts += [Text(title, "bold"), table, Text("")]
    parts.append(Text("The same scenarios and arrivals throughout; ± is the half of a 95 % interval."))
    return parts


def write_csv(report: Report, file: TextIO) -> None:
    """A line for each run, with the optimum of its scenario."""
    writer = csv.writer(file, lineterminator="\n")
    head = ("utilisation", "y", "disturbance", "token_time_sd", "noise", "scenario", "trial", "policy")
    writer.writerow((*head, *_FIGURES, "optimum_s"))
    for case in report.cases:
        recipe = case.recipe
        setting = (recipe.utilisation, recipe.y, recipe.disturbance, recipe.token_time_sd, recipe.noise)
        for row in case.trials:
            figures = (getattr(row.figures, name) for name in _FIGURES)
            writer.writerow((*setting, row.scenario, row.trial, row.policy, *figures, case.optimum_s[row.scenario]))
