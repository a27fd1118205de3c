"""Roots' configuration files as a fleet to simulate. What they do not say of servers and distances, the user does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dlbctl.core.errors import UsageError
from dlbctl.fleet.regions import WITHIN_REGION_MS, one_way_ms
from dlbctl.router.config import RootFile, load
from dlbctl.router.sections import CellSection
from dlbctl.sim.plan import CellPlan
from dlbctl.sim.whatif.fleet import DEFAULT_PROFILE, CellSize, Delays, Fleet, Told, engines, require, weights_of
from dlbctl.sim.whatif.routing import cell_plan, endpoint_of, world_plan


def fleet_of_root_files(paths: Sequence[Path], told: Told) -> Fleet:
    """The fleet of these roots; how it is routed is as the first file says. ConfigError, UsageError."""
    roots = [load(path, RootFile, {}) for path in paths]
    endpoint = endpoint_of(roots[0], told.endpoint)
    sections = {cell.name: cell for root in reversed(roots) for cell in root.cell}
    sections = {cell.name: sections[cell.name] for root in roots for cell in root.cell}
    _check_cells(told, sections.values())
    _check_sizes(told, sections.values())
    cells = tuple(_cell(section, endpoint.name, roots[0], told) for section in sections.values())
    sources = [root.root.cell for root in roots]
    beside = _beside(roots)
    delays = Delays(told, sources, sections, dict.fromkeys(beside, WITHIN_REGION_MS / 1e3))
    plan = world_plan(roots[0], endpoint, cells, delays.one_way_s, sources)
    assumed = [*_servers_assumed(told), *delays.assumed]
    assumed += [f"{cell} is beside its root, {WITHIN_REGION_MS:g} ms away (--one-way)" for _, cell in beside]
    if len(roots) > 1:
        assumed.append(f"all roots route as {paths[0]} says")
        assumed += [] if told.weights else ["every root has as many clients (--weight)"]
    if any(cell.leaves for cell in sections.values()):
        assumed.append("leaves have the time limits, retries and health checks of the root, and a queue of its size")
    return Fleet(plan, weights_of(sources, told, {}), tuple(assumed))


def _beside(roots: Sequence[RootFile]) -> list[tuple[str, str]]:
    """Cells that a root serves itself, where their names do not say how far away they are: (root's cell, cell)."""
    pairs = [(root.root.cell, cell.name) for root in roots for cell in root.cell if cell.server]
    return [pair for pair in pairs if one_way_ms(*pair) is None and pair[0] != pair[1]]


def _servers_assumed(told: Told) -> list[str]:
    profile = told.profile or f"{DEFAULT_PROFILE} (--profile)"
    speed = f"{told.time_factor:g} times as fast" if told.time_factor else "as fast as life (--time-factor)"
    return [f"servers are engines of the profile {profile}, {speed}"]


def _check_cells(told: Told, sections: Iterable[CellSection]) -> None:
    names = [section.name for section in sections]
    for name in told.cells:
        require(name, names, "--cell", "cell")


def _check_sizes(told: Told, sections: Iterable[CellSection]) -> None:
    """Ask at once for all that the files do not say."""
    missing = [section.name for section in sections if not section.server and section.name not in told.cells]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: what servers there are is in the files of the leaves",
            hint=f"--cell {','.join(f'{name}=N' for name in missing)} says how many",
        )


def _cell(section: CellSection, endpoint: str, root: RootFile, told: Told) -> CellPlan:
    if not section.server:
        return cell_plan(section.name, engines(told.cells[section.name], told), (), root.queue, section.capacity_rps)
    serving = [server for server in section.server if not server.endpoints or endpoint in server.endpoints]
    if not serving:
        raise UsageError(f"cell {section.name}: none of its servers serves {endpoint!r}")
    size = told.cells.get(section.name, CellSize(len(serving)))
    if size.servers != len(serving):
        raise UsageError(
            f"--cell {section.name}={size.servers}: the file lists {len(serving)} servers",
            hint=f"--servers {section.name}={size.servers} asks what would be if it had as many",
        )
    servers = engines(size, told, weights=[server.weight for server in serving])
    return cell_plan(section.name, servers, serving, root.queue, section.capacity_rps)
