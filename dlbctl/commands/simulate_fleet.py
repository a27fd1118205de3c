"""`dlbctl simulate fleet`: what would happen to a fleet under a trace, if."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlbctl.commands.output import note, show, show_json
from dlbctl.commands.simulation import InterruptedSimulationError, bar, writable
from dlbctl.core.errors import UsageError

if TYPE_CHECKING:
    from dlbctl.sim.whatif.compare import Step
    from dlbctl.sim.whatif.fleet import Fleet, Told
    from dlbctl.sim.whatif.report import Report
    from dlbctl.sim.whatif.running import Seen

_Trace = Annotated[
    Path, typer.Option(metavar="FILE", help="Trace in Mooncake's format, JSON lines, or an Azure one, .csv.")
]
_From = Annotated[
    list[Path] | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="A FLEET.toml of `dlbctl up`, or the root.toml of a root; repeat it for several roots. "
        "(default: the roots that run)",
    ),
]
_Admin = Annotated[
    str | None,
    typer.Option(
        metavar="ADDR",
        help="Admin addresses of running roots, with commas: their cells, policy, round trips and latency curves are "
        "simulated. (default: as for `dlbctl inspect`)",
    ),
]
_Profile = Annotated[
    str | None, typer.Option(help="What servers are that no file describes: engines of this profile, or of a file.")
]
_TimeFactor = Annotated[float | None, typer.Option(help="How many times faster than life these engines run.")]
_Cell = Annotated[
    list[str] | None,
    typer.Option(metavar="CELL=N[:PROFILE]", help="How many servers a cell has whose root.toml names its leaves only."),
]
_OneWay = Annotated[
    list[str] | None,
    typer.Option(metavar="[SOURCE:]CELL=MS", help="A network delay that is not in the table of cloud regions."),
]
_Weight = Annotated[
    list[str] | None,
    typer.Option(metavar="SOURCE=W", help="How much of the demand comes to a root, by its cell, beside the others."),
]
_Endpoint = Annotated[str | None, typer.Option(metavar="NAME", help="Which endpoint, where there are several.")]
_Speedup = Annotated[float, typer.Option(help="Divide the trace's times by this: 2 is twice as fast.")]
_Start = Annotated[float, typer.Option(min=0, metavar="S", help="Leave out rows before this second of the trace.")]
_End = Annotated[
    float | None, typer.Option(min=0, metavar="S", help="Leave out rows from this second of the trace on.")
]
_Limit = Annotated[int | None, typer.Option(min=1, help="Send at most this many rows.")]
_MaxOutput = Annotated[int | None, typer.Option(min=1, help="Ask for at most this many output tokens.")]
_MaxInput = Annotated[int | None, typer.Option(min=1, help="Leave out rows with more input tokens.")]
_BlockSize = Annotated[int, typer.Option(min=1, help="Tokens that one of the trace's hash ids stands for.")]
_Policy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="POLICY[,...]",
        help="What if the roots had these policies? Flows may have a stepsize, `flow/gradient:0.01`. "
        "(default: the one they have)",
    ),
]
_Demand = Annotated[float, typer.Option(metavar="X", help="What if the same requests came so many times as fast?")]
_Lose = Annotated[
    list[str] | None, typer.Option(metavar="CELL[@S]", help="What if a cell were gone, from a second of the run on?")
]
_Servers = Annotated[list[str] | None, typer.Option(metavar="CELL=N[@S]", help="What if a cell had so many servers?")]
_Slow = Annotated[
    list[str] | None, typer.Option(metavar="CELL=X[@S]", help="What if a cell's servers took so many times as long?")
]
_Add = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CELL=N[:PROFILE]",
        help="What if there were a further cell? It is where its name says, or --one-way; without a profile its "
        "servers are like those of the first cell.",
    ),
]
_WarmUp = Annotated[
    float, typer.Option(min=0, metavar="S", help="Leave the first requests out of the figures, until curves are known.")
]
_Seed = Annotated[
    int | None, typer.Option(min=0, help="Another seed is another run of chance. (default: that of the file, or 0)")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
_Csv = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line for each case.")]


def fleet(
    trace: _Trace,
    from_: _From = None,
    admin: _Admin = None,
    profile: _Profile = None,
    time_factor: _TimeFactor = None,
    cell: _Cell = None,
    one_way: _OneWay = None,
    weight: _Weight = None,
    endpoint: _Endpoint = None,
    speedup: _Speedup = 1.0,
    start: _Start = 0.0,
    end: _End = None,
    limit: _Limit = None,
    max_output: _MaxOutput = None,
    max_input: _MaxInput = None,
    block_size: _BlockSize = 512,
    policy: _Policy = None,
    demand: _Demand = 1.0,
    lose: _Lose = None,
    servers: _Servers = None,
    slow: _Slow = None,
    add: _Add = None,
    warm_up: _WarmUp = 0.0,
    seed: _Seed = None,
    as_json: _Json = False,
    csv: _Csv = None,
) -> None:
    """Simulate a fleet under a trace: as it is, and beside that as it would be, with every policy.

    All that is to be otherwise is so at once, in the second half of the table: `--lose eu-frankfurt@60 --demand 1.3`
    asks one question. Options with CELL may be repeated, or have several values with commas. What had to be assumed
    of the fleet stands below the figures. Ctrl-C reports the cases that are complete, and the exit code is 130.
    """
    from dlbctl.replay.selection import Selection
    from dlbctl.sim.whatif.changes import Add, WhatIf
    from dlbctl.sim.whatif.fleet import check_one_way
    from dlbctl.sim.whatif.parsing import parse_changes, parse_factor, parse_policies, parse_told
    from dlbctl.sim.whatif.report import simulate
    from dlbctl.sim.whatif.traffic import read_traffic

    parse_factor(speedup, "--speedup")
    told = parse_told(
        profile=profile, time_factor=time_factor, cells=cell, one_way=one_way, weights=weight, endpoint=endpoint
    )
    changes = parse_changes(lose=lose, slow=slow, servers=servers, add=add, told=told)
    what_if = WhatIf(changes, parse_factor(demand, "--demand"))
    policies = parse_policies(policy)
    traffic = read_traffic(
        trace,
        Selection(start, end, limit, max_input),
        speedup=speedup,
        max_output=max_output or 0,
        block_tokens=block_size,
    )
    found = _fleet(from_ or [], admin, told)
    check_one_way(told, found.plan, [change.cell for change in changes if isinstance(change, Add)])
    if seed is not None:
        found = replace(found, plan=replace(found.plan, seed=seed))
    with contextlib.ExitStack() as open_until_the_end:
        csv_file = open_until_the_end.enter_context(writable(csv)) if csv else None
        with _progress() as watch:
            report = simulate(found, traffic, trace, policies, what_if, warm_up_s=warm_up, watch=watch, warn=_warn)
        if csv_file:
            from dlbctl.commands.what_if_tables import write_what_if_csv

            write_what_if_csv(report, csv_file)
    _print(report, as_json=as_json)


def _fleet(paths: list[Path], admin: str | None, told: Told) -> Fleet:
    """The fleet of the files, or else that of the roots that run."""
    from dlbctl.sim.whatif.fleet_file import fleet_of_fleet_file, is_fleet_file
    from dlbctl.sim.whatif.root_file import fleet_of_root_files
    from dlbctl.sim.whatif.running import fleet_of_running

    if paths and admin:
        raise UsageError("--from and --admin are two fleets: give one")
    if not paths:
        return fleet_of_running(_seen(admin), told)
    if not any(map(is_fleet_file, paths)):
        return fleet_of_root_files(paths, told)
    if len(paths) > 1:
        raise UsageError("--from: a FLEET.toml is a whole fleet", hint="give it alone, or the root.toml of each root")
    return fleet_of_fleet_file(paths[0], told)


def _seen(admin: str | None) -> list[Seen]:
    """What the running roots show. All of them must answer: a fleet without one is another fleet."""
    from dlbctl.commands.admin_client import connected
    from dlbctl.core.snapshot import CellRow, CurveRow, EndpointRow
    from dlbctl.sim.whatif.running import Root, Seen

    seen = []
    with connected(admin) as clients:
        for client in clients:
            root = client.read("/v1/info", Root)
            if root.role != "root":
                raise UsageError(f"the router at {client.address} is a {root.role}", hint="name its roots")
            seen.append(
                Seen(
                    root.cell,
                    client.read("/v1/cells", list[CellRow]),
                    client.read("/v1/curves", list[CurveRow]),
                    client.read("/v1/endpoints", list[EndpointRow]),
                )
            )
    return seen


def _warn(text: str) -> None:
    note(f"dlbctl: warning: {text}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[Step], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with bar() as tell:
        yield lambda step: tell(step.requests, step.requests_asked, f"run {step.run}/{step.runs}")


def _print(report: Report, *, as_json: bool) -> None:
    from dlbctl.commands.what_if_tables import what_if_parts

    if as_json:
        show_json(report)
    elif report.rows:
        show(*what_if_parts(report))
    if not report.complete:
        raise InterruptedSimulationError(
            f"interrupted: {len(report.rows)} of {report.cases} cases are complete, and are reported"
        )
