"""The fluid network of the paper's section 4: cells that serve, sources that ask, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbctl.core.errors import DlbctlError
from dlbctl.sim.service import Service

Array: TypeAlias = NDArray[np.float64]

# A load this near to what the cells can serve is a matter of rounding, not of routing.
LEAST_HEADROOM = 1e-6


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: k servers, alike, and their law of service."""

    name: str
    servers: float
    service: Service

    @property
    def capacity_rps(self) -> float:
        """What it can serve [requests/s]; the limit is never reached."""
        return self.servers * self.service.capacity_per_server()

    def rate_rps(self, in_flight: float) -> float:
        """μ(N) [requests/s]."""
        return self.servers * self.service.rate_per_server(in_flight / self.servers)

    def in_flight_at(self, rate_rps: float) -> float:
        """The N with μ(N) = rate, which is below the capacity."""
        from scipy.optimize import brentq

        if rate_rps <= 0.0:
            return 0.0
        top = self.servers
        while self.rate_rps(top) < rate_rps:
            top *= 2.0
        return float(brentq(lambda n: self.rate_rps(n) - rate_rps, 0.0, top, xtol=1e-300, rtol=1e-14, maxiter=500))


@dataclass(frozen=True, eq=False)
class Network:
    """Cells, demand by source [requests/s], and one-way delays [s] by (source, cell).

    A pair that is missing in `one_way_s` is not admissible: that source's requests never go to that cell.
    DlbctlError for what cannot be: no cell or source, a negative delay, a source without a cell, more demand than the
    cells that it may use can serve.
    """

    cells: tuple[Cell, ...]
    demand_rps: Mapping[str, float]
    one_way_s: Mapping[tuple[str, str], float]

    def __post_init__(self) -> None:
        _check_names(self)
        _check_numbers(self)
        for source, row in zip(self.sources, self.admissible, strict=True):
            if not row.any():
                raise DlbctlError(f"source {source!r} may use no cell", hint="Give it a delay to at least one cell.")
        _check_stable(self)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, in the order of the arrays' rows."""
        return tuple(self.demand_rps)

    @cached_property
    def demand(self) -> Array:
        """λ_i [requests/s], by source."""
        return np.array([self.demand_rps[source] for source in self.sources], dtype=np.float64)

    @cached_property
    def servers(self) -> Array:
        """k_j, by cell."""
        return np.array([cell.servers for cell in self.cells], dtype=np.float64)

    @cached_property
    def admissible(self) -> NDArray[np.bool_]:
        """Whether a source (row) may use a cell (column)."""
        return np.array([[(source, cell.name) in self.one_way_s for cell in self.cells] for source in self.sources])

    @cached_property
    def delay_s(self) -> Array:
        """τ_ij [s] by source and cell; 0 where a pair is not admissible."""
        names = [cell.name for cell in self.cells]
        return np.array([[self.one_way_s.get((source, name), 0.0) for name in names] for source in self.sources])

    @cached_property
    def round_trip_s(self) -> Array:
        """2 τ_ij [s], the network's part of latency and of costs."""
        return 2.0 * self.delay_s

    @cached_property
    def capacity_rps(self) -> Array:
        """What each cell can serve [requests/s]; infinite for a link without a bound."""
        return np.array([cell.capacity_rps for cell in self.cells])

    @cached_property
    def headroom(self) -> float:
        """1 - (demand / the most of it, in the same proportions, that could be served); 0 or less is unstable."""
        return 1.0 - 1.0 / _growth_factor(self)[0]

    @cached_property
    def by_servers(self) -> Array:
        """Shares proportional to the servers of admissible cells: where flow routing starts from."""
        weights = np.where(self.admissible, self.servers, 0.0)
        of_source: Array = weights.sum(axis=1, keepdims=True)
        return weights / of_source

    def rates_rps(self, in_flight: Array) -> Array:
        """μ_j(N_j) [requests/s], by cell."""
        return np.array([cell.rate_rps(n) for cell, n in zip(self.cells, in_flight.tolist(), strict=True)])

    def mean_latency_s(self, in_flight: Array, shares: Array) -> float:
        """Mean time of a request, network included, in a steady state: Little's law for all cells together."""
        network = float((self.demand[:, None] * shares * self.round_trip_s).sum())
        return (float(in_flight.sum()) + network) / float(self.demand.sum())

    def scaled(self, factor: float) -> Network:
        """The same network with all demand multiplied."""
        return Network(self.cells, {name: rate * factor for name, rate in self.demand_rps.items()}, self.one_way_s)


def _check_names(network: Network) -> None:
    cells = [cell.name for cell in network.cells]
    if not cells or not network.demand_rps:
        raise DlbctlError("a network needs a cell and a source at least")
    for index, name in enumerate(cells):
        if name in cells[:index]:
            raise DlbctlError(f"cell {name!r} appears twice", hint="Give every cell a name of its own.")
    for source, cell in network.one_way_s:
        if source not in network.demand_rps:
            raise DlbctlError(f"a delay is given from {source!r}, which is no source")
        if cell not in cells:
            raise DlbctlError(f"a delay is given to {cell!r}, which is no cell")


def _check_numbers(network: Network) -> None:
    for cell in network.cells:
        if not (isfinite(cell.servers) and cell.servers > 0.0):
            raise DlbctlError(f"cell {cell.name!r} has {cell.servers:g} servers; it needs a number above 0")
    for source, rate in network.demand_rps.items():
        if not (isfinite(rate) and rate > 0.0):
            raise DlbctlError(f"source {source!r} asks for {rate:g} requests/s; leave out a source without demand")
    for (source, cell_name), delay_s in network.one_way_s.items():
        if not (isfinite(delay_s) and delay_s >= 0.0):
            raise DlbctlError(f"the delay from {source!r} to {cell_name!r} is {delay_s:g} s; no delay is negative")


def _check_stable(network: Network) -> None:
    factor, tight = _growth_factor(network)
    if 1.0 - 1.0 / factor >= LEAST_HEADROOM:
        return
    rows = np.isin(network.sources, tight)
    cells = np.asarray(network.admissible[rows].any(axis=0))
    names = [cell.name for cell, used in zip(network.cells, cells, strict=True) if used]
    raise DlbctlError(
        f"unstable: {_listed(tight)} asks for {network.demand[rows].sum():.4g} requests/s, and the cells that it may "
        f"use, {_listed(names)}, can serve fewer than {network.capacity_rps[cells].sum():.4g}",
        hint="Add servers, allow further cells, or lower the demand.",
    )


def _growth_factor(network: Network) -> tuple[float, Sequence[str]]:
    """By how much all demand could grow until some cells are full, and the sources that fill them: a linear program."""
    if network.admissible.all():
        return float(network.capacity_rps.sum() / network.demand.sum()), network.sources
    from scipy.optimize import linprog

    arcs = np.argwhere(network.admissible)
    # No more than all demand ever reaches a cell: a link without a bound stays one, and the program has a solution.
    capacity = np.minimum(network.capacity_rps, 1e3 * network.demand.sum())
    out_of_source = (arcs[:, 0] == np.arange(len(network.sources))[:, None]).astype(float)
    into_cell = (arcs[:, 1] == np.arange(len(network.cells))[:, None]).astype(float)
    solved = linprog(
        np.r_[-1.0, np.zeros(len(arcs))],
        A_ub=np.c_[np.zeros(len(capacity)), into_cell],
        b_ub=capacity,
        A_eq=np.c_[-network.demand, out_of_source],
        b_eq=np.zeros(len(network.demand)),
        method="highs",
    )
    assert solved.x is not None
    binding = np.abs(solved.eqlin.marginals) > 1e-9 * np.abs(solved.eqlin.marginals).max()
    return float(solved.x[0]), [source for source, is_tight in zip(network.sources, binding, strict=True) if is_tight]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def utilisation(network: Network) -> float:
    """Demand over capacity of all cells together; 0 where a link has no bound."""
    total = float(network.capacity_rps.sum())
    return 0.0 if total == inf else float(network.demand.sum()) / total
