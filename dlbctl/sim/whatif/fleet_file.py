"""A FLEET.toml as a fleet to simulate: its engines, delays and routers are those that `dlbctl up` would start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import tomli

from dlbctl.core.errors import UsageError
from dlbctl.engine.profile import load_profile
from dlbctl.fleet.generated import Tables, leaf_tables, root_tables
from dlbctl.fleet.settings import FleetSettings, Region, load_fleet
from dlbctl.router.config import LeafFile, RootFile, parse
from dlbctl.sim.plan import BatchingPlan, CellPlan
from dlbctl.sim.whatif.fleet import QUEUE_LIMIT, Fleet, Told, weights_of
from dlbctl.sim.whatif.routing import cell_plan, endpoint_of, world_plan

File = TypeVar("File", RootFile, LeafFile)

_ADMIN = "unix:/nowhere"


def is_fleet_file(path: Path) -> bool:
    """Whether it looks like one; if it cannot be read, whoever reads it for good says why."""
    try:
        return "region" in tomli.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def fleet_of_fleet_file(path: Path, told: Told) -> Fleet:
    """The fleet that `dlbctl up` makes of the file. ConfigError, UsageError say what is wrong."""
    for option, given in (("--profile", told.profile), ("--time-factor", told.time_factor), ("--cell", told.cells)):
        if given:
            raise UsageError(f"{option}: {path} says already what its servers are", hint="--servers, --add change it")
    settings = load_fleet(path)
    names = [region.name for region in settings.region]
    for _, cell in told.one_way_s:
        if cell in names:
            raise UsageError(f"--one-way: {path} says already how far away {cell} is", hint="delay_ms in it is that")
    leaves = {name: _address(9000 + number) for number, name in enumerate(names)}
    root = _parsed(root_tables(settings, settings.region[0], leaves, _ADMIN), RootFile, path)
    leaf_files = [_leaf(settings, region, path) for region in settings.region]
    endpoint = endpoint_of(root, told.endpoint or settings.model)
    capacities = {cell.name: cell.capacity_rps for cell in root.cell}
    cells = tuple(
        _cell(settings, region, leaf, capacities.get(region.name, 0.0))
        for region, leaf in zip(settings.region, leaf_files, strict=True)
    )
    one_way_s = {(a, b): _one_way_s(settings, a, b) for a in names for b in names}
    leaf_policy = next((e.policy for e in leaf_files[0].endpoint if e.name == endpoint.name), "")
    plan = world_plan(root, endpoint, cells, one_way_s, names, leaf_policy)
    weights = weights_of(names, told, {region.name: region.demand for region in settings.region})
    return Fleet(replace(plan, health=leaf_files[0].health), weights, ())


def _cell(settings: FleetSettings, region: Region, leaf: LeafFile, capacity_rps: float) -> CellPlan:
    factor = settings.time_factor_of(region) / (region.slowdown or 1.0)
    profile = load_profile(region.profile)
    servers = tuple(BatchingPlan(profile, factor, server.weight, QUEUE_LIMIT) for server in leaf.server)
    return cell_plan(region.name, servers, leaf.server, leaf.queue, capacity_rps)


def _leaf(settings: FleetSettings, region: Region, path: Path) -> LeafFile:
    engines = [_address(number) for number in range(1, region.engines + 1)]
    return _parsed(leaf_tables(settings, region, engines, _ADMIN), LeafFile, path)


def _parsed(tables: Tables, wanted: type[File], path: Path) -> File:
    import tomlkit

    return parse(tomlkit.dumps(tables), wanted, file=f"{path}: override")


def _one_way_s(settings: FleetSettings, source: str, cell: str) -> float:
    """Half of the way there and back; within a region there is no relay, and none of its jitter."""
    if source == cell:
        return 0.0
    there_ms, back_ms = settings.one_way_ms(source, cell), settings.one_way_ms(cell, source)
    assert there_ms is not None
    assert back_ms is not None
    return (there_ms + back_ms + settings.jitter_ms) / 2e3


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}"
