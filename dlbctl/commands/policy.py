"""`dlbctl policy`: show, switch and revert the policy of an endpoint in running routers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlbctl.commands import output
from dlbctl.commands.admin_client import ADMIN_HELP, AdminClient, change_all, connected, path_part, raise_all
from dlbctl.core.errors import ConfigError, DlbctlError, UnreachableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from dlbctl.core.snapshot import EndpointRow

app = typer.Typer(help="Show or switch the policies of a running router.", no_args_is_help=True)

ADMIN = typer.Option(None, "--admin", metavar="ADDR", help=ADMIN_HELP)
JSON = typer.Option(False, "--json", help="Print JSON for machines.")


@app.command()
def show(admin: str | None = ADMIN, as_json: bool = JSON) -> None:
    """Show each endpoint's policy: configured, in force, and the cost in use."""
    from dlbctl.commands.inspect import endpoints

    endpoints(admin=admin, as_json=as_json, watch=False)


@app.command(name="list")
def list_policies(as_json: bool = JSON) -> None:
    """List the mechanisms and costs that policies are made of; asks no router."""
    from dlbctl.core.policy import COSTS, MECHANISMS, takes_cost

    mechanisms = {name: MECHANISMS.summary(name) for name in MECHANISMS.names()}
    costs = {name: COSTS.summary(name) for name in COSTS.names()}
    alone = [name for name in mechanisms if not takes_cost(name)]
    if as_json:
        output.show_json({"mechanisms": mechanisms, "costs": costs, "without_cost": alone})
        return
    parts = (
        ("MECHANISM, before a slash and a cost", {name: mechanisms[name] for name in mechanisms if name not in alone}),
        ("COST", costs),
        ("MECHANISM, a policy by itself", {name: mechanisms[name] for name in alone}),
    )
    output.show(*(part for head, named in parts for part in _listed(head, named)))


@app.command(name="set")
def set_policy(
    endpoint: str = typer.Argument(help="The endpoint, as `policy show` lists it."),
    policy: str | None = typer.Argument(
        None, help="MECHANISM/COST, for instance discrete/latency, or a mechanism that takes no cost."
    ),
    mechanism: str | None = typer.Option(None, "--mechanism", help="Change the mechanism alone."),
    cost: str | None = typer.Option(None, "--cost", help="Change the cost alone."),
    admin: str | None = ADMIN,
    as_json: bool = JSON,
) -> None:
    """Switch an endpoint's policy now, in every router named; requests in flight are not touched.

    The others are switched although one does not answer: it is named at the end, and the exit code is 4. The switch
    lasts until `policy revert` or a restart; `policy show` marks it.
    """
    wanted = {key: value for key, value in (("policy", policy), ("mechanism", mechanism), ("cost", cost)) if value}
    if not wanted or (policy and len(wanted) > 1):
        raise UsageError("policy set: give a policy, or --mechanism and/or --cost")
    _check(wanted)
    _change(endpoint, "PUT", wanted, admin, as_json=as_json)


@app.command()
def revert(
    endpoint: str = typer.Argument(help="The endpoint, as `policy show` lists it."),
    admin: str | None = ADMIN,
    as_json: bool = JSON,
) -> None:
    """Go back to the configured policy."""
    _change(endpoint, "DELETE", None, admin, as_json=as_json)


def _listed(head: str, named: dict[str, str]) -> Iterator[RenderableType]:
    from rich.text import Text

    from dlbctl.commands.tables import add, table

    yield Text(head, style="bold")
    rows = table("", "")
    rows.show_header = False
    rows.columns[1].no_wrap = False
    for name, summary in named.items():
        add(rows, f"  {name}", summary)
    yield rows


def _check(wanted: dict[str, str]) -> None:
    """Refuse a policy that does not exist before any router is asked; here it is no file's fault.

    Whether half of a policy goes with the other half of the one in force is for the router to say.
    """
    from dlbctl.core.policy import COSTS, MECHANISMS, Policy

    try:
        if "policy" in wanted:
            Policy.parse(wanted["policy"])
        if "mechanism" in wanted:
            MECHANISMS.load(wanted["mechanism"], where="--mechanism")
        if "cost" in wanted:
            COSTS.load(wanted["cost"], where="--cost")
        if "mechanism" in wanted and "cost" in wanted:
            Policy.parse(f"{wanted['mechanism']}/{wanted['cost']}", where="--cost")
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint) from error


def _change(endpoint: str, method: str, body: dict[str, str] | None, admin: str | None, *, as_json: bool) -> None:
    """Change every router that answers, once each of them has said that it knows the endpoint."""
    silent: list[DlbctlError] = []
    with connected(admin) as clients:
        knowing = [client for client in clients if _knows(client, endpoint, silent)]
        rows = change_all(knowing, lambda client: _change_one(client, endpoint, method, body), silent)
    _show(rows, endpoint, as_json=as_json)
    raise_all(silent)


def _show(rows: dict[str, EndpointRow], endpoint: str, *, as_json: bool) -> None:
    if rows and as_json:
        output.show_json(rows)
        return
    for address, row in rows.items():
        for_now = f"; for now on {row.cost}: {row.why}" if row.why else ""
        output.show(f"{address}: {endpoint} is on {row.policy}{for_now}")


def _knows(client: AdminClient, endpoint: str, silent: list[DlbctlError]) -> bool:
    """Whether a router can be changed: not one that is away. One without the endpoint is an error of the command."""
    from dlbctl.core.snapshot import EndpointRow

    try:
        known = [row.endpoint for row in client.read("/v1/endpoints", list[EndpointRow])]
    except UnreachableError as error:
        silent.append(error)
        return False
    if endpoint not in known:
        raise DlbctlError(
            f"the router at {client.address} has no endpoint {endpoint!r}",
            hint=f"it has: {', '.join(known) or 'none yet'}",
        )
    return True


def _change_one(client: AdminClient, endpoint: str, method: str, body: dict[str, str] | None) -> EndpointRow:
    from dlbctl.core.snapshot import EndpointRow

    found = client.change(method, f"/v1/policy/{path_part(endpoint)}", body, list[EndpointRow])
    return next(row for row in found if row.endpoint == endpoint)
