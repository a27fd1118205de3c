"""`dlbctl server`: add servers to a running router, and remove them."""

from __future__ import annotations

from typing import Any

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, change_all, connected, path_part, raise_all
from dlbctl.core.errors import ConfigError, DlbctlError, UsageError

app = typer.Typer(help="Add servers to a running router, or remove them.", no_args_is_help=True)

ADMIN = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP)
JSON = typer.Option(False, "--json", help="Print the cell's servers as JSON, by admin address.")


@app.command()
def add(
    url: str = typer.Argument(help="Address of the server, http://host:port."),
    cell: str = typer.Option("", "--cell", help="Its cell; may be left out where the router serves only one."),
    name: str = typer.Option("", "--name", help="What it is called in tables; its host and port by default."),
    weight: float = typer.Option(1.0, "--weight", help="How many standard servers it is worth."),
    slots: int = typer.Option(0, "--slots", help="Most requests in flight to it at once; 0 for no limit."),
    endpoint: list[str] = typer.Option([], "--endpoint", help="A model it serves; again for more. Else it is asked."),
    admin: str | None = ADMIN,
    as_json: bool = JSON,
) -> None:
    """Send requests to one more server, until the router restarts; a reload keeps it.

    For it to last, add it to the configuration file as well. A server of the file that was removed live comes back as
    the file has it.
    """
    import msgspec

    from dlbctl.router.sections import ServerSection

    server = ServerSection(url, name, tuple(endpoint), weight, slots)
    try:
        server.check("server")
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint) from error
    body = {"server": msgspec.to_builtins(server), "cell": cell}
    _change("POST", "/v1/servers", body, admin, as_json=as_json, done=f"{url}: added")


@app.command()
def remove(
    server: str = typer.Argument(help="The server's address or name."),
    admin: str | None = ADMIN,
    as_json: bool = JSON,
) -> None:
    """Send no more requests to a server, until the router restarts; what is in flight there ends in its own time.

    For it to last, remove it from the configuration file as well. `server add` brings it back.
    """
    path = f"/v1/servers/{path_part(server)}"
    _change("DELETE", path, None, admin, as_json=as_json, done=f"{server}: removed")


def _change(method: str, path: str, body: Any, admin: str | None, *, as_json: bool, done: str) -> None:
    from dlbctl.core.snapshot import ServerRow

    silent: list[DlbctlError] = []
    with connected(admin) as clients:
        rows = change_all(clients, lambda client: client.change(method, path, body, list[ServerRow]), silent)
    if rows and as_json:
        output.show_json(rows)
    elif rows:
        output.show(*(f"{address}: {done}" for address in rows))
    raise_all(silent)
