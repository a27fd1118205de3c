"""`dlbctl inspect`: live cells, curves, endpoints and servers of a running router."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, AdminClient, addresses

if TYPE_CHECKING:
    pass

app = typer.Typer(help="Show the live state of a running router.", no_args_is_help=True)

WATCH_S = 1.0

ADMIN = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP)
JSON = typer.Option(False, "--json", help="Print JSON for machines.")
WATCH = typer.Option(False, "--watch", "-w", help="Refresh every second until Ctrl-C.")


@app.command()
def cells(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Cells of a root: load, latency, cost and share of every endpoint in every cell."""
    from dlbctl.commands.tables import cells_table
    from dlbctl.core.snapshot import CellRow

    _run(admin, "/v1/cells", list[CellRow], cells_table, as_json=as_json, watch=watch)


@app.command()
def endpoints(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Endpoints: the policy in force, the cost in use and why."""
    from dlbctl.commands.tables import endpoints_table
    from dlbctl.core.snapshot import EndpointRow

    _run(admin, "/v1/endpoints", list[EndpointRow], endpoints_table, as_json=as_json, watch=watch)


@app.command()
def servers(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Servers of every leaf that answers."""
    from dlbctl.commands.tables import servers_table
    from dlbctl.core.snapshot import ServerRow

    _run(admin, "/v1/servers", list[ServerRow], servers_table, as_json=as_json, watch=watch)


@app.command()
def curves(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Latency curves: samples, fitted line and operating point of every cell."""
    from dlbctl.commands.plots import curve_plots
    from dlbctl.core.snapshot import CurveRow

    _run(admin, "/v1/curves", list[CurveRow], curve_plots, as_json=as_json, watch=watch)


def _run(admin: str | None, path: str, rows: Any, render: Callable[[Any], Any], *, as_json: bool, watch: bool) -> None:
    clients = [AdminClient(address) for address in addresses(admin)]

    def read() -> dict[str, Any]:
        return {client.address: client.read(path, rows) for client in clients}

    if watch:
        _watch(lambda: _rendered(read(), render))
    elif as_json:
        found = read()
        output.show_json(next(iter(found.values())) if len(found) == 1 else found)
    else:
        output.show(*_rendered(read(), render))


def _rendered(found: dict[str, Any], render: Callable[[Any], Any]) -> list[Any]:
    """One table a router, headed by its address when there are several."""
    parts: list[Any] = []
    for address, rows in found.items():
        if len(found) > 1:
            parts.append(f"\n{address}")
        parts.append(render(rows))
    return parts


def _watch(render: Callable[[], list[Any]]) -> None:
    from rich.console import Group
    from rich.live import Live

    with Live(Group(*render()), console=output.console(), screen=False, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(WATCH_S)
                live.update(Group(*render()), refresh=True)
        except KeyboardInterrupt:
            return
