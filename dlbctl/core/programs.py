"""Programs that take too long for an event loop: plain data that is solved elsewhere and comes back as an event.

A tier asks for one with `SetTimer.solve`; its driver works it out (`solve`), in another process or in place, and tells
the tier the outcome as `solved`. A log replayed offline has the outcome and never solves anything again.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dlbctl.core.errors import DlbctlError

# A cell is filled up to this share of its capacity before distance is traded for room (MNLB's headroom).
TARGET_UTILISATION = 0.85
# What a further unit of utilisation costs: so many times all requests going over the longest arc. Room comes first.
OVERLOAD_WEIGHT = 10.0
TIME_LIMIT_S = 5.0


class UnsolvedError(DlbctlError):
    """A program without a solution, or with none in time."""


class NetworkLatencyProgram(Struct, frozen=True, tag="network-latency"):
    """Send every source's requests to where they spend the least time on the network and cells have room for them.

    min sum_ij lambda_i x_ij 2 tau_ij + M u  subject to  sum_i lambda_i x_ij <= u C_j,  u >= 0.85, and x_i on the
    simplex, M = 10 * max 2 tau * sum lambda: the minimum network latency balancer that DLB section 1.1 compares with.

    cells: by name, and capacities: requests/s each can serve. sources: cells with roots, and rates: requests/s of each,
    positive. tau_s: one-way delay by source and cell; None where a source cannot send, which is never all of its row.
    """

    cells: tuple[str, ...]
    capacities: tuple[float, ...]
    sources: tuple[str, ...]
    rates: tuple[float, ...]
    tau_s: tuple[tuple[float | None, ...], ...]


class NetworkLatencySolution(Struct, frozen=True, tag="network-latency"):
    """shares: x_ij by source and cell, each row with sum 1. utilisation: u, of the fullest cell (or the target's)."""

    cells: tuple[str, ...]
    sources: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    utilisation: float


Program: TypeAlias = NetworkLatencyProgram
Solution: TypeAlias = NetworkLatencySolution


def solve(program: Program) -> Solution:
    """Work a program out. UnsolvedError when that fails.

    Rates are taken as shares of their sum and delays of the longest, so that tolerances mean the same for any fleet.
    """
    import numpy as np
    from scipy.optimize import linprog

    sources, cells = len(program.sources), len(program.cells)
    total = sum(program.rates)
    longest_s = max(tau_s for row in program.tau_s for tau_s in row if tau_s is not None) or 1.0
    demand = np.array(program.rates) / total
    distance = np.array([[0.0 if tau_s is None else tau_s / longest_s for tau_s in row] for row in program.tau_s])
    arcs = [(0.0, 0.0 if tau_s is None else 1.0) for row in program.tau_s for tau_s in row]
    # The unknowns: x, source by source, then u.
    inflow = np.kron(demand, np.eye(cells))
    capacity = np.array(program.capacities) / total
    simplex = np.kron(np.eye(sources), np.ones(cells))
    outcome = linprog(
        np.append(demand[:, np.newaxis] * distance, OVERLOAD_WEIGHT),
        A_ub=np.column_stack([inflow, -capacity]),
        b_ub=np.zeros(cells),
        A_eq=np.column_stack([simplex, np.zeros(sources)]),
        b_eq=np.ones(sources),
        bounds=[*arcs, (TARGET_UTILISATION, None)],
        method="highs",
        options={"time_limit": TIME_LIMIT_S},
    )
    if outcome.status != 0 or outcome.x is None:
        raise UnsolvedError(f"no plan for {sources} sources and {cells} cells: {outcome.message}")
    x = np.maximum(outcome.x[:-1].reshape(sources, cells), 0.0)  # to rounding they are shares already
    x /= x.sum(axis=1, keepdims=True)
    return NetworkLatencySolution(
        program.cells, program.sources, tuple(map(tuple, x.tolist())), utilisation=float(outcome.x[-1])
    )
