"""`dlbctl kill`: end an open request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, AdminClient, connected, path_part
from dlbctl.core.errors import DlbctlError

if TYPE_CHECKING:
    from dlbctl.router.open_requests import RequestRow


def kill(
    request_id: str = typer.Argument(metavar="ID", help="The request's id, as `inspect requests` lists it."),
    number: int | None = typer.Option(
        None, "--number", help="Which of several requests with that id, as `inspect requests` numbers them."
    ),
    admin: str | None = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print JSON for machines: the request as it last was."),
) -> None:
    """End an open request: its client gets an error, or, where the answer has begun, sees it cut."""
    from dlbctl.router.open_requests import RequestRow

    with connected(admin) as clients:
        client, found = _single(_found(clients, request_id, number), request_id)
        path = f"/v1/requests/{path_part(request_id)}?number={found.number}"
        killed = client.change("DELETE", path, None, RequestRow)
    if as_json:
        output.show_json(killed)
    else:
        output.show(f"{client.address}: killed {request_id}, {killed.phase} for {killed.endpoint}")


def _found(clients: list[AdminClient], request_id: str, number: int | None) -> list[tuple[AdminClient, RequestRow]]:
    from dlbctl.router.open_requests import RequestRow

    return [
        (client, row)
        for client in clients
        for row in client.read("/v1/requests", list[RequestRow])
        if row.id == request_id and number in {None, row.number}
    ]


def _single(found: list[tuple[AdminClient, RequestRow]], request_id: str) -> tuple[AdminClient, RequestRow]:
    """The one request meant. Clients choose ids, so several requests may have the same."""
    if not found:
        raise DlbctlError(
            f"no open request has the id {request_id}", hint="`dlbctl inspect requests` lists those that are open"
        )
    if len(found) > 1:
        listed = "".join(f"\n  {_choice(client, row)}" for client, row in found)
        raise DlbctlError(
            f"{len(found)} open requests have the id {request_id}", hint=f"Add what singles one out:{listed}"
        )
    return found[0]


def _choice(client: AdminClient, row: RequestRow) -> str:
    return f"--number {row.number} --admin {client.address}  ({row.phase}, {row.age_s:.1f} s old, from {row.client})"
