"""`dlbctl leaf`: run a leaf router."""

from __future__ import annotations

from pathlib import Path

import typer

from dlbctl.commands.output import announce


def leaf(
    config: Path | None = typer.Option(
        None, "--config", "-c", help="Configuration file (default: ./leaf.toml, then /etc/dlbctl/leaf.toml)."
    ),
) -> None:
    """Run a leaf router: takes a cell's requests from roots and chooses an inference server for each."""
    import os

    # The fits are small: numpy's helper threads would cost memory and win nothing. Read when numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dlbctl.fleet.lifeline import watch_lifeline
    from dlbctl.router.config import LeafFile, find
    from dlbctl.router.reload import Source
    from dlbctl.router.run import run_leaf

    watch_lifeline()
    run_leaf(Source(find("leaf", config), LeafFile, os.environ), announce)
