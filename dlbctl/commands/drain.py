"""`dlbctl drain` and `dlbctl undrain`: take a cell, a leaf or a server out of service, and put it back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, AdminClient, change_all, connected, path_part, raise_all
from dlbctl.core.errors import DlbctlError, UnreachableError

if TYPE_CHECKING:
    from dlbctl.core.snapshot import DrainRow

POLL_S = 0.1

TARGET = typer.Argument(help="A cell by its name, a leaf by its address, a server by its name or address.")
ADMIN = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP)
JSON = typer.Option(False, "--json", help="Print JSON for machines, by admin address.")


def drain(
    target: str = TARGET,
    wait: bool = typer.Option(False, "--wait", help="Return when nothing is in flight there any more."),
    admin: str | None = ADMIN,
    as_json: bool = JSON,
) -> None:
    """Send nothing new to a cell, leaf or server; what is in flight there ends in its own time.

    It lasts until `undrain` or a restart of the router, whatever its health and whatever the file says.
    """
    _change("PUT", target, admin, as_json=as_json, wait=wait)


def undrain(target: str = TARGET, admin: str | None = ADMIN, as_json: bool = JSON) -> None:
    """Send requests to a drained cell, leaf or server again."""
    _change("DELETE", target, admin, as_json=as_json, wait=False)


def _change(method: str, target: str, admin: str | None, *, as_json: bool, wait: bool) -> None:
    """Change every router that answers, once each of them has said that it knows the target."""
    from dlbctl.core.snapshot import DrainRow

    path = f"/v1/drain/{path_part(target)}"
    silent: list[DlbctlError] = []
    with connected(admin) as clients:
        knowing = [client for client in clients if _knows(client, path, silent)]
        rows = change_all(knowing, lambda client: client.change(method, path, None, DrainRow), silent)
        if wait:
            rows = {client.address: _until_empty(client, path) for client in knowing if client.address in rows}
    _show(rows, as_json=as_json)
    raise_all(silent)


def _show(rows: dict[str, DrainRow], *, as_json: bool) -> None:
    if rows and as_json:
        output.show_json(rows)
        return
    for address, row in rows.items():
        state = "drained" if row.drained else "in service"
        output.show(f"{address}: {row.place} is {state}, {row.in_flight} in flight")


def _knows(client: AdminClient, path: str, silent: list[DlbctlError]) -> bool:
    """Whether a router answers; one that answers and does not know the target is an error, before any is changed."""
    from dlbctl.core.snapshot import DrainRow

    try:
        client.read(path, DrainRow)
    except UnreachableError as error:
        silent.append(error)
        return False
    return True


def _until_empty(client: AdminClient, path: str) -> DrainRow:
    from dlbctl.core.snapshot import DrainRow

    while (row := client.read(path, DrainRow)).in_flight:
        time.sleep(POLL_S)
    return row
