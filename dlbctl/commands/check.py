"""`dlbctl check`: validate a configuration file without starting anything."""

from __future__ import annotations

from pathlib import Path

import typer

from dlbctl.commands import output
from dlbctl.core.errors import ConfigError


def check(file: Path = typer.Argument(help="A root.toml, leaf.toml or fleet.toml.")) -> None:
    """Check a configuration file: exit 0 when it would start, 3 with the fault when it would not."""
    import os

    import tomli

    from dlbctl.fleet.settings import load_fleet
    from dlbctl.router.config import LeafFile, RootFile, load, read_token

    try:
        tables = tomli.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    if "root" in tables:
        root = load(file, RootFile, os.environ)
        read_token(root.root)
        output.show(f"{file}: a root of {len(root.cell)} cells, {len(root.endpoint)} endpoints configured: ok")
    elif "leaf" in tables:
        leaf = load(file, LeafFile, os.environ)
        read_token(leaf.leaf)
        output.show(f"{file}: a leaf of {len(leaf.server)} servers in {leaf.leaf.cell}: ok")
    elif "region" in tables:
        fleet = load_fleet(file)
        output.show(f"{file}: a fleet of {len(fleet.region)} regions: ok")
    else:
        raise ConfigError(f"{file}: has neither [root], [leaf] nor [[region]]", hint="what is it for?")
