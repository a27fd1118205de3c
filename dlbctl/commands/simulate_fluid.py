"""`dlbctl simulate fluid`: a network's fluid model beside its optimum."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbctl.commands import output
from dlbctl.commands.simulation import check_positive, network_of, whole_or_nothing
from dlbctl.core.errors import DlbctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dlbctl.sim.fluid import Trajectory
    from dlbctl.sim.fluid_report import FluidReport
    from dlbctl.sim.network import Network
    from dlbctl.sim.stability import Verdict

JSON = typer.Option(False, "--json", help="Print JSON for machines.")


def fluid(
    file: Path | None = typer.Argument(
        None, metavar="[NETWORK.toml]", help="Cells, sources and delays. Without it, an example of three regions."
    ),
    policy: str = typer.Option(
        "flow/gradient",
        "--policy",
        metavar="MECHANISM/COST",
        help="What is integrated: `flow`, `flow-pi` or `argmin`, on `gradient`, `latency` or `rif`.",
    ),
    stepsize: float | None = typer.Option(
        None,
        "--stepsize",
        metavar="ETA",
        help="Of flow, 1/s² for costs in seconds, or of flow-pi, 1/s. (default: .01, for flow per second, over each "
        "source's mean one-way delay)",
    ),
    time_s: float = typer.Option(300.0, "--time", metavar="SECONDS", help="How long the model is integrated."),
    utilisation: float | None = typer.Option(
        None, "--utilisation", metavar="SHARE", help="Scale all demand to this part of what the cells serve together."
    ),
    csv: Path | None = typer.Option(None, "--csv", metavar="FILE", help="Write the run there: each cell at each time."),
    as_json: bool = JSON,
) -> None:
    """Integrate the delayed fluid model of a network, and hold it against the optimum.

    The optimum is the least mean latency that any routing reaches in this model; beside it stand the Wardrop
    equilibrium, where latency routing settles, and that of RIF routing. The run starts with empty cells and shares by
    number of servers; it converges, swings for ever, or is still on its way.
    """
    from dlbctl.sim.fluid_report import parse_policy, report

    parse_policy(policy)  # a slip of the command line is told before any file is read
    check_positive("--time", time_s)
    check_positive("--stepsize", stepsize)
    network = network_of(file, utilisation)
    with whole_or_nothing():
        made, run = report(network, policy, time_s, stepsize)
    if csv:
        _write_csv(csv, network, run)
    if as_json:
        output.show_json(made)
        return
    output.show(*_parts(network, made, run))


def _parts(network: Network, made: FluidReport, run: Trajectory) -> Iterator[RenderableType]:
    from dlbctl.commands.plots import WIDTH, time_plot
    from dlbctl.commands.tables import percent

    of_all = "" if made.utilisation is None else f", {percent(made.utilisation)} of what the cells serve"
    yield f"{made.demand_rps:.4g} requests/s{of_all}; {made.policy} for {made.duration_s:g} s"
    yield ""
    yield _cells(made)
    yield ""
    yield _states(made)
    yield "  LATENCY is that within a cell; the mean latency of requests has their way there and back too"
    yield f"\nprice of anarchy (wardrop over optimum): {made.price_of_anarchy:.4f}"
    yield f"{made.policy}: {_outcome(made.verdict)}"
    if made.steps:
        sizes = ", ".join(f"{source} {eta:.3g}" for source, eta in made.steps.stepsizes.items())
        safe = "" if made.steps.safe is None else f"; certainly stable up to {made.steps.safe:.2g}"
        yield f"stepsizes: {sizes}{safe}"
        yield _onset(made.steps.onset, made.steps.onset_period_s)
    every = max(len(run.time_s) // (4 * WIDTH), 1)
    series = {cell.name: run.in_flight[::every, index].tolist() for index, cell in enumerate(network.cells)}
    yield ""
    yield time_plot(run.time_s[::every].tolist(), series, "in flight")


def _outcome(verdict: Verdict) -> str:
    from dlbctl.commands.tables import percent, seconds

    words = {"converged": "has converged", "settling": "is still settling", "diverging": "diverges, load only grows"}
    what = words.get(verdict.outcome, "")
    if verdict.outcome == "cycle":
        what = f"swings, {verdict.cell} by ±{verdict.amplitude:.3g} requests every {seconds(verdict.period_s)}"
    return (
        f"{what}; in the last quarter up to {percent(verdict.distance)} of the load is not where its equilibrium has it"
    )


def _onset(factor: float | None, period_s: float | None) -> str:
    from dlbctl.commands.tables import seconds

    if factor is None:
        return "near its equilibrium it never swings, whatever the stepsizes"
    return (
        f"near its equilibrium it swings from {factor:.3g} times these stepsizes on, every {seconds(period_s)} at first"
    )


def _cells(made: FluidReport) -> RenderableType:
    from dlbctl.commands.tables import add, percent, seconds, table

    numbers = ("FLOW/S", "SHARE", "UTILISATION", "N", "N/K", "LATENCY")
    rows = table("STATE", "CELL", *numbers, numbers=numbers)
    for row in made.cells:
        figures = (f"{row.flow_rps:.2f}", percent(row.share), percent(row.utilisation), f"{row.in_flight:.1f}")
        add(rows, row.state, row.cell, *figures, f"{row.load:.2f}", seconds(row.latency_s))
    return rows


def _states(made: FluidReport) -> RenderableType:
    from dlbctl.commands.tables import NOTHING, add, seconds, table

    numbers = ("MEAN LATENCY", "OVER OPTIMUM")
    rows = table("STATE", *numbers, numbers=numbers)
    for row in made.states:
        over = NOTHING if row.over_optimum is None else f"{row.over_optimum:.4f}"
        add(rows, row.state, seconds(row.mean_latency_s), over)
    return rows


def _write_csv(path: Path, network: Network, run: Trajectory) -> None:
    import csv

    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("time_s", "cell", "in_flight", "sent_rps", "latency_s"))
            for time_s, loads, sent in zip(run.time_s, run.in_flight.tolist(), run.sent_rps.tolist(), strict=True):
                for cell, load, rate in zip(network.cells, loads, sent, strict=True):
                    latency_s = cell.service.latency_s(load / cell.servers)
                    writer.writerow((f"{time_s:.6g}", cell.name, f"{load:.6g}", f"{rate:.6g}", f"{latency_s:.6g}"))
    except OSError as error:
        raise DlbctlError(f"{path}: cannot be written: {error.strerror}") from error
