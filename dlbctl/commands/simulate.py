"""`dlbctl simulate`: what routing would do, without a request sent."""

from __future__ import annotations

from pathlib import Path

import typer

from dlbctl.core.errors import DlbctlError

app = typer.Typer(help="Simulate routing: fluid limits, baselines and fleets, in virtual time.", no_args_is_help=True)

JSON = typer.Option(False, "--json", help="Print JSON for machines.")


@app.command()
def fluid(
    file: Path | None = typer.Argument(
        None, metavar="[NETWORK.toml]", help="Cells, sources and delays. Without it, an example of three regions."
    ),
    as_json: bool = JSON,
) -> None:
    """Integrate the fluid model of a network, and hold it against the optimum."""
    raise DlbctlError(f"simulate fluid {file or ''}: not built yet (--json: {as_json})")
