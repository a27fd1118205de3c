"""`dlbctl root`: run a root router."""

from __future__ import annotations

from pathlib import Path

import typer

from dlbctl.commands.output import announce


def root(
    config: Path | None = typer.Option(
        None, "--config", "-c", help="Configuration file (default: ./root.toml, then /etc/dlbctl/root.toml)."
    ),
) -> None:
    """Run a root router: takes client requests and chooses a cell for each."""
    import os

    # The fits are small: numpy's helper threads would cost memory and win nothing. Read when numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dlbctl.fleet.lifeline import watch_lifeline
    from dlbctl.router.config import RootFile, find
    from dlbctl.router.reload import Source
    from dlbctl.router.run import run_root

    watch_lifeline()
    run_root(Source(find("root", config), RootFile, os.environ), announce)
