"""Where routing settles when everything stands still, and the least mean latency that any routing can reach.

For a cost c_ij = f_j(N_j) + g_ij the equilibrium (the paper's Definition 1: of each source, every cell that is used has
the same cost, and no other has less) is the minimum of the convex potential (Lemma 1)

    Σ_j p_j(z_j) + Σ_ij λ_i x_ij g_ij,   p_j(z) = integral of f_j(μ_j^{-1}(s)) ds from 0 to z,   z_j = Σ_i λ_i x_ij.

f = 1/μ' gives p_j = N_j: the optimum, which bounds the mean latency of every policy from below in this model. f = l
gives the Wardrop equilibrium; f = N/k with g = 0 that of RIF routing.

The potential is separable in z, so it is minimised as a linear program on a grid of each cell's load that is refined
around the solution: μ is tabulated and never inverted, the slope of each piece is f itself, and neither the curve's
steepness near capacity nor unused arcs make trouble, as they do for general solvers (docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, log
from typing import NamedTuple

import numpy as np

from dlbctl.core.errors import DlbctlError
from dlbctl.sim.network import Array, Cell, Network
from dlbctl.sim.service import Service

# Of the mean cost: by how much the costs of used arcs may exceed the least.
TOLERANCE = 1e-6
# Arcs within it of the least cost, likewise, have equal costs to a cost that does not know distance.
TIE = 1e-5
# Shares below it are rounding.
USED = 1e-9

# Between 0 and a cell's top, loads of the grid are this many times the one before; around the last solution it is the
# distances to it that are.
COARSE, GRADED = 1.5, 1.3
COARSE_REACH, GRADED_REACH = 1e6, 1e9
# A cell's top: full but for this part of the network's headroom.
TOP = 1e-3
MOST_ROUNDS = 20


class Cost(NamedTuple):
    """A cost of the paper's section 3.2.3: f(n) of the load per server, and whether the round trip is added.

    can_be_zero: as the router's cost of that name says of itself.
    """

    name: str
    of: Callable[[Service, float], float]
    with_network: bool
    can_be_zero: bool = False

    def network_s(self, network: Network) -> Array:
        """g_ij by source and cell."""
        return network.round_trip_s if self.with_network else np.zeros_like(network.round_trip_s)

    def at(self, network: Network, in_flight: Array) -> Array:
        """f_j(N_j), by cell."""
        loads = in_flight / network.servers
        return np.array([self.of(cell.service, n) for cell, n in zip(network.cells, loads, strict=True)])


GRADIENT = Cost("gradient", lambda service, n: service.gradient_s(n), with_network=True)
LATENCY = Cost("latency", lambda service, n: service.latency_s(n), with_network=True)
RIF = Cost("rif", lambda _, n: n, with_network=False, can_be_zero=True)
COSTS = {cost.name: cost for cost in (GRADIENT, LATENCY, RIF)}


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A solved program.

    shares: x_ij by source and cell. flow_rps: z_j. in_flight: N_j. residual: by how much the cost of a used arc exceeds
    the least of its source, at most, as a part of the mean cost: the certificate that this is an equilibrium.
    """

    cost: Cost
    shares: Array
    flow_rps: Array
    in_flight: Array
    mean_latency_s: float
    residual: float


def optimum(network: Network) -> Equilibrium:
    """The routing of least mean latency: equilibrium of the gradient cost."""
    return equilibrium(network, GRADIENT)


def wardrop(network: Network) -> Equilibrium:
    """Where no request could do better elsewhere: equilibrium of the latency cost."""
    return equilibrium(network, LATENCY)


def price_of_anarchy(network: Network) -> float:
    """Mean latency at the Wardrop equilibrium over the least one."""
    return wardrop(network).mean_latency_s / optimum(network).mean_latency_s


def equilibrium(network: Network, cost: Cost) -> Equilibrium:
    """Solve the program of a cost. DlbctlError if no solution can be certified to TOLERANCE.

    Flows and loads are unique (Lemma 1). Shares may not be: with RIF's cost, which does not know distance, the mean
    latency depends on them. Then they are those nearest, in relative entropy, to shares by number of servers, which is
    where flow routing starts from; in a complete network all sources have the same.
    """
    best: Equilibrium | None = None
    for shares in _refined(network, cost):
        if not cost.with_network:
            shares = _nearest_by_servers(network, cost, shares)
        found = certified(network, cost, shares)
        if best is None or found.residual < best.residual:
            best = found
        if best.residual <= TOLERANCE:
            return best
    assert best is not None
    raise DlbctlError(
        f"the equilibrium of {cost.name} could not be solved: costs still differ by {best.residual:.2g} of their mean",
        hint="Is a cell's curve all but a step, or its load within a thousandth of what it can serve?",
    )


def certified(network: Network, cost: Cost, shares: Array) -> Equilibrium:
    """What given shares amount to in a steady state, and how far they are from an equilibrium of a cost.

    Where a cell gets more than it can serve there is no steady state: loads, latency and residual are infinite.
    """
    flow = network.demand @ shares
    if (flow >= network.capacity_rps).any():
        return Equilibrium(cost, shares, flow, np.full(len(flow), inf), inf, inf)
    in_flight = in_flight_at(network, flow)
    costs = cost.at(network, in_flight) + cost.network_s(network)
    least = np.where(network.admissible, costs, inf).min(axis=1, keepdims=True)
    used = shares > USED
    excess = np.where(used, costs - least, 0.0)
    mean = float((network.demand[:, None] * np.where(used, shares * costs, 0.0)).sum() / network.demand.sum())
    residual = float(excess.max()) / mean
    return Equilibrium(cost, shares, flow, in_flight, network.mean_latency_s(in_flight, shares), residual)


def in_flight_at(network: Network, flow_rps: Array) -> Array:
    """N_j that serve flows z_j below the capacities."""
    return np.array([cell.in_flight_at(z) for cell, z in zip(network.cells, flow_rps, strict=True)])


def _refined(network: Network, cost: Cost) -> Iterator[Array]:
    """Shares that solve ever finer piecewise linear programs; the residual falls some tenfold with each."""
    program = _Program(network, cost)
    coarse = [_coarse_grid(network, cell) for cell in network.cells]
    grids = coarse
    for _ in range(MOST_ROUNDS):
        rates = [_rates(cell, grid) for cell, grid in zip(network.cells, grids, strict=True)]
        flow = program.solve(grids, rates)
        yield flow / network.demand[:, None]
        solution = zip(flow.sum(axis=0), rates, grids, strict=True)
        loads = [float(np.interp(into, rate, grid)) for into, rate, grid in solution]
        grids = [np.sort(np.r_[grid, _around(n, grid[-1])]) for grid, n in zip(coarse, loads, strict=True)]


def _coarse_grid(network: Network, cell: Cell) -> Array:
    """Loads per server, from 0 to where the cell is all but full or serves all demand."""
    full = cell.capacity_rps * (1.0 - TOP * min(network.headroom, 0.5))
    top = cell.in_flight_at(min(full, float(network.demand.sum()))) / cell.servers
    steps = np.arange(int(log(COARSE_REACH, COARSE)), -1.0, -1.0)
    return np.concatenate([[0.0], top * np.power(COARSE, -steps)])


def _rates(cell: Cell, grid: Array) -> Array:
    return np.array([cell.rate_rps(n * cell.servers) for n in grid])


def _around(n: float, top: float) -> Array:
    """Pieces around a load, the finer the nearer to it: wherever the solution is, it is found more exactly than n was.

    Pieces of one width would have to shrink from round to round, and a cell whose load still moves as others settle
    would be left where its pieces are too wide.
    """
    distances = n * np.power(GRADED, -np.arange(1.0, log(GRADED_REACH, GRADED)))
    around: Array = np.minimum(np.concatenate([n - distances, [n], n + distances]), top)
    return around


class _Program:
    """The potential with each p_j piecewise linear: flows on arcs, and how far each piece of each cell is filled."""

    def __init__(self, network: Network, cost: Cost) -> None:
        self._network = network
        self._cost = cost
        self._arcs = np.argwhere(network.admissible)
        self._network_s = cost.network_s(network)[network.admissible]
        # The solver's tolerances are absolute: flows are counted in all demand, costs in a typical one.
        self._flow_unit = float(network.demand.sum())

    def solve(self, grids: list[Array], rates: list[Array]) -> Array:
        """The flows [requests/s], by source and cell, that are least on these grids."""
        from scipy.optimize import linprog

        network, arcs = self._network, self._arcs
        slopes = np.concatenate([self._slopes(cell, grid) for cell, grid in zip(network.cells, grids, strict=True)])
        widths = np.concatenate([np.diff(rate) for rate in rates]) / self._flow_unit
        cell_of_piece = np.repeat(np.arange(len(grids)), [len(grid) - 1 for grid in grids])
        sources, cells = np.arange(len(network.sources))[:, None], np.arange(len(grids))[:, None]
        out_of_source = np.c_[arcs[:, 0] == sources, np.zeros((len(sources), len(widths)))]
        into_cell = np.c_[(arcs[:, 1] == cells).astype(float), -(cell_of_piece == cells).astype(float)]
        solved = linprog(
            np.r_[self._network_s, slopes] / np.median(slopes),
            A_eq=np.r_[out_of_source, into_cell],
            b_eq=np.r_[network.demand / self._flow_unit, np.zeros(len(cells))],
            bounds=np.c_[np.zeros(len(arcs) + len(widths)), np.r_[np.full(len(arcs), inf), widths]],
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if solved.x is None:
            raise DlbctlError(f"the equilibrium of {self._cost.name} could not be solved: {solved.message}")
        return self._flows(np.asarray(solved.x, dtype=np.float64)[: len(arcs)])

    def _slopes(self, cell: Cell, grid: Array) -> Array:
        """f in the middle of each piece: rising, so that pieces fill in their order."""
        return np.array([self._cost.of(cell.service, n) for n in (grid[1:] + grid[:-1]) / 2.0])

    def _flows(self, solution: Array) -> Array:
        """Flows by source and cell, each source's summing to its demand exactly."""
        flows = np.zeros(self._network.admissible.shape)
        flows[self._network.admissible] = np.maximum(solution, 0.0)
        to_demand: Array = self._network.demand / flows.sum(axis=1)
        return flows * to_demand[:, None]


def _nearest_by_servers(network: Network, cost: Cost, shares: Array) -> Array:
    """Of the shares with the same flows, the nearest to those by servers: by scaling rows and columns in turn."""
    flow = network.demand @ shares
    costs = np.where(network.admissible, cost.at(network, in_flight_at(network, flow)), inf)
    least = costs.min(axis=1, keepdims=True)
    scaled = np.where((costs <= least + TIE * least.max()) | (shares > USED), network.by_servers, 0.0)
    for _ in range(10_000):
        into = network.demand @ scaled
        scaled = scaled * np.divide(flow, into, out=np.ones_like(flow), where=into > 0.0)
        scaled = scaled / scaled.sum(axis=1, keepdims=True)
        if np.abs(network.demand @ scaled - flow).max() <= 1e-12 * flow.sum():
            break
    return scaled
