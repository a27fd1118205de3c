"""How a fleet is routed, as its root.toml says it: the part of a world that is the same whatever its servers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dlbctl.core.errors import UsageError
from dlbctl.core.settings import DEFAULT_POLICY, EndpointSettings, Limits, QueueSettings
from dlbctl.router.config import RootFile
from dlbctl.router.sections import ServerSection
from dlbctl.sim.plan import CellPlan, ServerPlan, WorldPlan
from dlbctl.sim.whatif.fleet import require


def endpoint_of(root: RootFile, name: str | None) -> EndpointSettings:
    """The endpoint to simulate: the one that was named, or the only one; the default one where none is configured."""
    names = [endpoint.name for endpoint in root.endpoint]
    if not names:
        return EndpointSettings(name or "default")
    if name is None and len(names) > 1:
        raise UsageError("--endpoint: which one is to be simulated?", hint=f"there are: {', '.join(names)}")
    name = name or names[0]
    require(name, names, "--endpoint", "endpoint")
    return next(endpoint for endpoint in root.endpoint if endpoint.name == name)


def cell_plan(
    name: str,
    servers: tuple[ServerPlan, ...],
    sections: Iterable[ServerSection],
    queue: QueueSettings,
    capacity_rps: float = 0.0,
) -> CellPlan:
    """A cell. sections: what is configured of its servers; the fewest slots of any are everyone's."""
    slots = min((section.slots for section in sections if section.slots), default=0)
    return CellPlan(name, servers, slots, queue.size, queue.max_wait_s, capacity_rps)


def world_plan(
    root: RootFile,
    endpoint: EndpointSettings,
    cells: tuple[CellPlan, ...],
    one_way_s: Mapping[tuple[str, str], float],
    sources: Iterable[str],
    leaf_policy: str = "",
) -> WorldPlan:
    """The world that a root's file makes of cells."""
    # There is one endpoint only: what bounds all of them bounds it.
    most = [limit for limit in (endpoint.limits.max_in_flight, root.root.max_in_flight) if limit]
    return WorldPlan(
        cells=cells,
        sources=tuple(sources),
        one_way_s=one_way_s,
        policy=endpoint.policy or DEFAULT_POLICY["root"],
        leaf_policy=leaf_policy or DEFAULT_POLICY["leaf"],
        probe_interval_s=root.root.probe_interval_ms / 1e3,
        leaves_per_cell=max(max(len(cell.leaves), 1) for cell in root.cell),
        retries=endpoint.retries or root.retries,
        limits=Limits(min(most, default=0)),
        flow=endpoint.flow,
        timeouts=endpoint.timeouts or root.timeouts,
        health=root.health,
        seed=max(root.root.seed, 0),
    )
