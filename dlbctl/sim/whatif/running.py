"""A fleet that runs, as its roots' admin listeners show it: each cell is modelled by its fitted latency curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from dlbctl.core.curve import Curve
from dlbctl.core.errors import UsageError
from dlbctl.core.snapshot import CellRow, CurveRow, EndpointRow
from dlbctl.sim.plan import CellPlan, RatePlan, WorldPlan
from dlbctl.sim.whatif.fleet import CellSize, Delays, Fleet, Told, engines, require, weights_of


class Root(Struct):
    """Which router it is: what of `/v1/info` matters here."""

    role: str
    cell: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What one root shows: the cell that it stands in, and rows of `dlbctl inspect`."""

    source: str
    cells: Sequence[CellRow]
    curves: Sequence[CurveRow]
    endpoints: Sequence[EndpointRow]


def fleet_of_running(roots: Sequence[Seen], told: Told) -> Fleet:
    """The fleet of these roots; cells and policy are as the first one shows them. UsageError where that is too little.

    With a profile told, a cell's servers are engines of it instead of its curve.
    """
    endpoint = _endpoint(roots[0].endpoints, told.endpoint)
    rows = [_of(endpoint.endpoint, root.cells) for root in roots]
    names = list(rows[0])
    for name in told.cells:
        require(name, names, "--cell", "cell")
    curves = {row.cell: row.curve for row in roots[0].curves if row.endpoint == endpoint.endpoint}
    cells = tuple(_cell(row, curves.get(name), told) for name, row in rows[0].items())
    sources = [root.source for root in roots]
    measured_s = {
        (root.source, name): row.rtt_s / 2.0
        for root, by_name in zip(roots, rows, strict=True)
        for name, row in by_name.items()
        if row.rtt_s is not None
    }
    delays = Delays(told, sources, names, measured_s)
    plan = WorldPlan(cells, tuple(sources), delays.one_way_s, endpoint.policy)
    assumed = (*_assumed(told, len(roots)), *delays.assumed)
    return Fleet(plan, weights_of(sources, told, {}), assumed, sizes_matter=told.profile is not None)


def _endpoint(rows: Sequence[EndpointRow], name: str | None) -> EndpointRow:
    names = [row.endpoint for row in rows]
    if not names:
        raise UsageError("the router knows no endpoint yet: none of its servers has answered")
    if name is None and len(names) > 1:
        raise UsageError("--endpoint: which one is to be simulated?", hint=f"there are: {', '.join(names)}")
    name = name or names[0]
    require(name, names, "--endpoint", "endpoint")
    return next(row for row in rows if row.endpoint == name)


def _of(endpoint: str, rows: Sequence[CellRow]) -> dict[str, CellRow]:
    """The cells that requests for the endpoint can go to."""
    found = {row.cell: row for row in rows if row.endpoint == endpoint and row.routable and row.k > 0.0}
    if not found:
        raise UsageError(f"no cell can be routed to for {endpoint!r} now", hint="`dlbctl inspect cells` shows why")
    return found


def _cell(row: CellRow, curve: Curve | None, told: Told) -> CellPlan:
    if told.profile is not None:
        return CellPlan(row.cell, engines(told.cells.get(row.cell, CellSize(round(row.k))), told))
    if curve is None:
        raise UsageError(
            f"cell {row.cell} has no latency curve yet",
            hint="it takes some requests; or say what its servers are with --profile",
        )
    return CellPlan(row.cell, (RatePlan(curve, row.k),), curve=curve)


def _assumed(told: Told, roots: int) -> list[str]:
    said = []
    if told.profile is None:
        said.append("a cell is its fitted latency curve, as if all requests were alike: no sizes, no prefix cache")
        said.append("leaves know those curves from the beginning, and do not learn further ones")
    else:
        speed = f"{told.time_factor or 1.0:g} times as fast as life"
        said.append(f"servers are engines of the profile {told.profile}, {speed}")
    said.append("limits, retries and time limits are the defaults")
    if roots > 1:
        said.append("all roots route as the first one")
        said += [] if told.weights else ["every root has as many clients (--weight)"]
    return said
