"""`dlbctl inspect`: live cells, curves, endpoints, servers and requests of a running router."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, AdminClient, connected, raise_all
from dlbctl.core.errors import DlbctlError

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(help="Show the live state of a running router.", no_args_is_help=True)

WATCH_S = 1.0

ADMIN = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP)
JSON = typer.Option(
    False,
    "--json",
    help="Print JSON for machines: a list of rows, or, of several routers, an object of lists by admin address.",
)
WATCH = typer.Option(
    False, "--watch", "-w", help="Refresh every second until Ctrl-C; with --json, a line of JSON a second."
)


@app.command()
def cells(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Cells of a root: load, latency, cost and share of every endpoint in every cell."""
    from dlbctl.commands.tables import cells_table
    from dlbctl.core.snapshot import CellRow

    _run(View("/v1/cells", list[CellRow], cells_table), admin, as_json=as_json, watch=watch)


@app.command()
def endpoints(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Endpoints: the policy in force, the cost in use and why."""
    from dlbctl.commands.tables import endpoints_table
    from dlbctl.core.snapshot import EndpointRow

    _run(View("/v1/endpoints", list[EndpointRow], endpoints_table), admin, as_json=as_json, watch=watch)


@app.command()
def servers(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Servers of every leaf that answers."""
    from dlbctl.commands.tables import servers_table
    from dlbctl.core.snapshot import ServerRow

    _run(View("/v1/servers", list[ServerRow], servers_table), admin, as_json=as_json, watch=watch)


@app.command()
def curves(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Latency curves: samples, fitted line and operating point of every cell."""
    from dlbctl.commands.plots import curve_plots
    from dlbctl.core.snapshot import CurveRow

    _run(View("/v1/curves", list[CurveRow], curve_plots), admin, as_json=as_json, watch=watch)


@app.command()
def requests(admin: str | None = ADMIN, as_json: bool = JSON, watch: bool = WATCH) -> None:
    """Open requests: where each is, how far it has come and for how long."""
    from dlbctl.commands.tables import requests_table
    from dlbctl.router.open_requests import RequestRow

    _run(View("/v1/requests", list[RequestRow], requests_table), admin, as_json=as_json, watch=watch)


@dataclass(frozen=True, slots=True)
class View:
    """A document of the admin API, and how people see it."""

    path: str
    rows: Any
    render: Callable[[Any], RenderableType]


@dataclass(frozen=True, slots=True)
class Found:
    """What the routers answered, by address, and the errors of those that did not."""

    rows: dict[str, Any]
    errors: dict[str, DlbctlError]

    def document(self) -> Any:
        """For machines: the shape depends on how many routers were asked, not on how many answered."""
        several = len(self.rows) + len(self.errors) > 1
        return self.rows if several else next(iter(self.rows.values()), None)

    def parts(self, view: View) -> list[RenderableType]:
        """For people: one table a router, headed by its address when there are several."""
        several = len(self.rows) + len(self.errors) > 1
        parts: list[RenderableType] = []
        for address, rows in self.rows.items():
            parts += [f"\n{address}"] if several else []
            parts.append(view.render(rows))
        return parts


def _run(view: View, admin: str | None, *, as_json: bool, watch: bool) -> None:
    with connected(admin) as clients:
        if watch:
            _watch(clients, view, as_json=as_json)
        else:
            _show(_ask(clients, view), view, as_json=as_json)


def _show(found: Found, view: View, *, as_json: bool) -> None:
    if found.rows and as_json:
        output.show_json(found.document())
    elif found.rows:
        output.show(*found.parts(view))
    raise_all(found.errors.values())


def _ask(clients: list[AdminClient], view: View) -> Found:
    """Ask every router; one that does not answer hides none of the others."""
    found = Found({}, {})
    for client in clients:
        try:
            found.rows[client.address] = client.read(view.path, view.rows)
        except DlbctlError as error:
            found.errors[client.address] = error
    return found


def _watch(clients: list[AdminClient], view: View, *, as_json: bool) -> None:
    """Show it every second until Ctrl-C. A router that goes away is said to be, until it is back."""
    try:
        found = _ask(clients, view)
        if not found.rows:
            raise_all(found.errors.values())
        if as_json:
            _stream(clients, view, found)
        else:
            _draw(clients, view, found)
    except KeyboardInterrupt:
        return


def _stream(clients: list[AdminClient], view: View, found: Found) -> None:
    while True:
        for error in found.errors.values():
            output.complain(error)
        if found.rows:
            output.show_json(found.document(), on_one_line=True)
        time.sleep(WATCH_S)
        found = _ask(clients, view)


def _draw(clients: list[AdminClient], view: View, found: Found) -> None:
    with output.refreshing() as draw:
        while True:
            head = f"{time.strftime('%H:%M:%S')}  every {WATCH_S:g} s, Ctrl-C ends"
            errors = [f"\n{error.message}" for error in found.errors.values()]
            draw(head, *errors, *found.parts(view))
            time.sleep(WATCH_S)
            found = _ask(clients, view)
