"""`dlbctl reload`: have running routers take over their configuration files."""

from __future__ import annotations

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, change_all, connected, raise_all
from dlbctl.core.errors import DlbctlError


def reload(
    admin: str | None = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print what changed as JSON, by admin address."),
) -> None:
    """Have a running router read its configuration file again: the whole of it takes effect, or nothing.

    Requests in flight are not touched, and what was changed live (policies, drained and added servers) stays. Where
    routers listen, which cell they are of, the seed and the event log cannot change while they run.
    """
    silent: list[DlbctlError] = []
    with connected(admin) as clients:
        changed = change_all(clients, lambda client: client.change("POST", "/v1/reload", None, dict[str, str]), silent)
    if changed and as_json:
        output.show_json(changed)
    elif changed:
        _show(changed)
    raise_all(silent)


def _show(changed: dict[str, dict[str, str]]) -> None:
    for address, differences in changed.items():
        output.show(f"{address}: {'reloaded' if differences else 'reloaded; the file says nothing new'}")
        output.show(*(f"  {key}: {how}" for key, how in differences.items()))
