"""`dlbctl up`: a whole local fleet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbctl.commands import output
from dlbctl.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from dlbctl.fleet.run_folder import FleetRecord
    from dlbctl.fleet.settings import FleetSettings

_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def up(
    fleet: Path | None = typer.Argument(
        None,
        metavar="[FLEET.toml]",
        help="Regions, engines and delays (default: three regions, nine engines).",
    ),
    lasting: str = typer.Option("", "--for", metavar="60s", help="End by itself after this long."),
    directory: Path | None = typer.Option(
        None, "--dir", help="Folder for logs, generated TOML and fleet.json (default: a fresh one)."
    ),
    detach: bool = typer.Option(
        False, "--detach", help="Return when the fleet is ready; it runs on in the background."
    ),
    stop: bool = typer.Option(False, "--stop", help="End the fleet that runs, in --dir if there are several."),
) -> None:
    """Run a whole local fleet: engines, a leaf and a root per region, and WAN delays between the regions.

    Prints the first root's client URL on the first line, then all other addresses. Ctrl-C ends everything.
    A process that dies is reported and the others go on, so that you can kill one and watch the routing.
    """
    from dlbctl.fleet.run_folder import fresh_folder, stop_fleet

    if stop:
        output.note(f"stopped the fleet in {stop_fleet(directory)}")
        return
    for_s = _seconds(lasting) if lasting else None
    settings = _settings(fleet)
    folder = directory or fresh_folder()
    if detach:
        _run_detached(settings, folder, for_s)
    else:
        _run(settings, folder, for_s)


def _settings(fleet: Path | None) -> FleetSettings:
    from dlbctl.fleet.settings import default_fleet, load_fleet

    return load_fleet(fleet) if fleet else default_fleet()


def _run(settings: FleetSettings, folder: Path, for_s: float | None) -> None:
    import asyncio

    from dlbctl.fleet.serve import serve_fleet

    output.note(f"dlbctl up: starting {len(settings.region)} regions in {folder}")

    def ready(record: FleetRecord) -> None:
        _show(record, "Ctrl-C" if for_s is None else f"Ctrl-C, or by itself in {for_s:g} s")

    asyncio.run(serve_fleet(settings, folder, on_ready=ready, report=output.note, for_s=for_s))


def _run_detached(settings: FleetSettings, folder: Path, for_s: float | None) -> None:
    import asyncio

    from dlbctl.fleet.detach import run_detached
    from dlbctl.fleet.run_folder import read_record
    from dlbctl.fleet.serve import serve_fleet

    run_detached(
        lambda ready: asyncio.run(
            serve_fleet(settings, folder, on_ready=lambda _: ready(), report=output.note, for_s=for_s)
        ),
        folder / "logs" / "up.log",
    )
    _show(read_record(folder), f"dlbctl up --stop --dir {folder}")


def _show(record: FleetRecord, how_to_stop: str) -> None:
    output.show(record.regions[0].url, _regions(record))
    if record.links:
        output.show("", _links(record))
    output.show("\nFor `dlbctl inspect`, `dlbctl policy` and `dlbctl replay TRACE.jsonl` in another terminal:")
    output.show_line(f"export DLBCTL_ADMIN={record.admin}")
    output.show_line(f"export DLBCTL_TARGET={record.target}")
    output.show("")
    output.show_line(f"model:  {record.model}")
    output.show_line(f"files:  {record.directory} (*.toml generated, logs/*.log, fleet.json)")
    if record.links:
        output.show_line(f"delays: python -m dlbctl.fleet.relay_control {record.relay_control} links")
    output.show_line(f"stop:   {how_to_stop}")


def _regions(record: FleetRecord) -> Table:
    from rich.table import Table

    table = Table("region", "root (clients)", "leaf (roots)", "engines", box=None, pad_edge=False)
    for region in record.regions:
        table.add_row(region.name, region.url, region.leaf, " ".join(map(_port, region.engines)))
    return table


def _port(url: str) -> str:
    return url[url.rindex(":") :]


def _links(record: FleetRecord) -> Table:
    from rich.table import Table

    table = Table("from", "to", "one way", "relay", box=None, pad_edge=False)
    for link in record.links:
        table.add_row(link.source, link.destination, f"{link.delay_ms:g} ms", link.url)
    return table


def _seconds(text: str) -> float:
    """Return a duration such as `90`, `60s`, `5m` or `1.5h` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if not found:
        raise UsageError(f"--for {text}: not a duration", hint="Write it as 60s, 5m or 1h.")
    return float(found[1]) * _SECONDS[found[2]]
