"""The typer app; nothing else."""

from __future__ import annotations

import sys

import typer

from dlbctl import __version__, is_compiled
from dlbctl.commands import (
    check,
    drain,
    engine,
    inspect,
    kill,
    leaf,
    policy,
    reload,
    replay,
    root,
    server,
    simulate,
    up,
)
from dlbctl.commands.output import complain
from dlbctl.core.errors import DlbctlError

app = typer.Typer(
    name="dlbctl",
    help="Global load balancer for LLM inference: root and leaf routers, replay, simulation.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dlbctl {__version__} ({'compiled' if is_compiled() else 'interpreted'})")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Options of `dlbctl` itself."""


app.command("up")(up.up)
app.command("root")(root.root)
app.command("leaf")(leaf.leaf)
app.command("engine")(engine.engine)
app.command("replay")(replay.replay)
app.add_typer(simulate.app, name="simulate")
app.add_typer(inspect.app, name="inspect")
app.add_typer(policy.app, name="policy")
app.command("kill")(kill.kill)
app.command("drain")(drain.drain)
app.command("undrain")(drain.undrain)
app.add_typer(server.app, name="server")
app.command("reload")(reload.reload)
app.command("check")(check.check)


def main() -> None:
    """Entry point of the `dlbctl` script: run a command, turn a known error into its exit code."""
    try:
        app()
    except DlbctlError as error:
        complain(error)
        sys.exit(error.exit_code)
