"""`dlbctl check`: validate a configuration file without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dlbctl.commands import output
from dlbctl.core.errors import ConfigError

if TYPE_CHECKING:
    from dlbctl.fleet.settings import FleetSettings
    from dlbctl.router.config import LeafFile, RootFile

Settings = TypeVar("Settings", "RootFile", "LeafFile")


def check(file: Path = typer.Argument(help="A root.toml, leaf.toml or fleet.toml.")) -> None:
    """Check a configuration file: exit 0 when it would start, 3 with the fault when it would not."""
    import os

    from dlbctl.fleet.settings import load_fleet
    from dlbctl.router.config import LeafFile, RootFile, load, read_token

    tables = _tables(file)
    if "root" in tables:
        root = load(file, RootFile, os.environ)
        read_token(root.root)
        output.show(f"{file}: {_root(root)}: ok")
    elif "leaf" in tables:
        leaf = load(file, LeafFile, os.environ)
        read_token(leaf.leaf)
        output.show(f"{file}: {_leaf(leaf)}: ok")
    elif "region" in tables:
        fleet = load_fleet(file)
        _check_generated(file, fleet)
        output.show(f"{file}: a fleet of {_count(len(fleet.region), 'region')}: ok")
    else:
        raise ConfigError(
            f"{file}: has neither [root], [leaf] nor [[region]]",
            hint="a root's file has [root], a leaf's [leaf], a fleet's for `dlbctl up` one [[region]] or more",
        )


def _tables(file: Path) -> dict[str, Any]:
    import tomli

    try:
        return tomli.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text") from error
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def _check_generated(file: Path, fleet: FleetSettings) -> None:
    """What `dlbctl up` would write of it: a policy or an override only shows to be wrong in a router's own file."""
    from dlbctl.engine.profile import load_profile
    from dlbctl.fleet.generated import leaf_tables, root_tables
    from dlbctl.router.config import LeafFile, RootFile, read_token

    somewhere, admin = "http://127.0.0.1:1", "unix:/admin.sock"
    leaves = {region.name: f"http://127.0.0.1:{port}" for port, region in enumerate(fleet.region, start=1)}
    for region in fleet.region:
        load_profile(region.profile)
        leaf = _settings(f"{file}: leaf of {region.name}", leaf_tables(fleet, region, [somewhere], admin), LeafFile)
        root = _settings(f"{file}: root of {region.name}", root_tables(fleet, region, leaves, admin), RootFile)
        read_token(leaf.leaf)
        read_token(root.root)


def _settings(name: str, tables: dict[str, Any], wanted: type[Settings]) -> Settings:
    import tomlkit

    from dlbctl.router.config import parse

    return parse(tomlkit.dumps(tables), wanted, file=name)


def _root(root: RootFile) -> str:
    return f"a root of {_count(len(root.cell), 'cell')}, {_count(len(root.endpoint), 'endpoint')} configured"


def _leaf(leaf: LeafFile) -> str:
    return f"a leaf of {_count(len(leaf.server), 'server')} in {leaf.leaf.cell}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
