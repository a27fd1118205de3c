"""The paper's fluid model with delays (section 4, appendix C.1), integrated in steps of fixed length.

    dN_j/dt = Σ_i λ_i x_ij(t - τ_ij) - μ_j(N_j)
    flow:    dx_i/dt = -η_i c_i, projected onto the simplex of admissible cells
    flow-pi: the same with heights h_i of log cost in the place of c_i, and a part that follows h_i at once
    argmin:  x_i is all on the least c_ij
    with     c_ij(t) = f_j(N_j(t - τ_ij)) + g_ij

A step is Euler's, which for the shares is just what a router does each round. Only costs and shares have a past that
matters; both are kept as long as the longest delay, and delays between steps are interpolated. Shares move by the
mechanisms' own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf
from typing import TypeAlias

import numpy as np

from dlbctl.core.errors import DlbctlError
from dlbctl.core.mechanisms import flow as flow_mechanism
from dlbctl.core.mechanisms import flow_pi as flow_pi_mechanism
from dlbctl.core.moving_shares import TAU_FLOOR_S
from dlbctl.sim.equilibrium import Cost
from dlbctl.sim.network import Array, Network

# A step is this part of the shortest service time, and a router's round at most.
STEPS_PER_SERVICE = 25
LONGEST_STEP_S = 0.01
MOST_STEPS = 5_000_000

Rule: TypeAlias = Callable[[Array, Array, float], Array]
"""New shares from shares, costs (infinite where not admissible) and the length of the step [s]."""


@dataclass(frozen=True, eq=False)
class State:
    """Loads N_j, and shares x_ij."""

    in_flight: Array
    shares: Array


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What happened: at each time, loads N_j and the flows Σ_i λ_i x_ij that sources sent; and the end.

    mean_shares: over the last quarter.
    """

    step_s: float
    time_s: Array
    in_flight: Array
    sent_rps: Array
    mean_shares: Array
    end: State

    @property
    def tail(self) -> slice:
        """The last quarter: what is left when the beginning is forgotten."""
        return tail_of(len(self.time_s))


def tail_of(length: int) -> slice:
    """The last quarter of a sequence."""
    return slice(length - max(length // 4, 1), length)


def flow(stepsizes: Array) -> Rule:
    """The mechanism `flow`, with η_i by source [1/s², for costs in seconds]."""

    def step(shares: Array, costs: Array, step_s: float) -> Array:
        rows = zip(shares.tolist(), costs.tolist(), (stepsizes * step_s).tolist(), strict=True)
        moved: Array = np.array([flow_mechanism.step(*row) for row in rows])
        return moved

    return step


def flow_pi(stepsizes: Array, cost: Cost) -> Rule:
    """The mechanism `flow-pi`, with η_i by source [1/s]. For one run: it remembers the shares that it has learned."""
    learned: list[list[float]] = []

    def step(shares: Array, costs: Array, step_s: float) -> Array:
        before = learned or shares.tolist()
        rows = zip(before, costs.tolist(), (stepsizes * step_s).tolist(), strict=True)
        moved = [flow_pi_mechanism.step(*row, can_be_zero=cost.can_be_zero) for row in rows]
        learned[:] = [row for row, _ in moved]
        used: Array = np.array([row for _, row in moved])
        return used

    return step


def argmin(shares: Array, costs: Array, step_s: float) -> Array:  # noqa: ARG001 - it has no memory
    """Everything to the least cost; equals share."""
    least = costs == costs.min(axis=1, keepdims=True)
    return np.asarray(least / least.sum(axis=1, keepdims=True), dtype=np.float64)


def default_stepsizes(network: Network, kappa: float = flow_mechanism.KAPPA_PER_S) -> Array:
    """η_i as routers choose it: kappa over the mean one-way latency to a source's cells."""
    mean_s = network.delay_s.sum(axis=1) / network.admissible.sum(axis=1)
    return np.asarray(kappa / np.maximum(mean_s, TAU_FLOOR_S), dtype=np.float64)


def default_step_s(network: Network) -> float:
    """A step that resolves the quickest cell."""
    quickest_s = min(cell.service.latency_s(1.0) for cell in network.cells)
    return min(quickest_s / STEPS_PER_SERVICE, LONGEST_STEP_S)


def integrate(
    network: Network,
    cost: Cost,
    rule: Rule,
    duration_s: float,
    *,
    start: State | None = None,
    step_s: float | None = None,
) -> Trajectory:
    """Run the model from a state that has lasted for ever; by default empty cells and shares by servers."""
    step_s = step_s or default_step_s(network)
    steps = ceil(duration_s / step_s)
    if steps > MOST_STEPS:
        raise DlbctlError(
            f"{duration_s:g} s in steps of {step_s:.2g} s are more than {MOST_STEPS:,} steps",
            hint="Ask for a shorter time.",
        )
    state = start or State(np.zeros(len(network.cells)), network.by_servers)
    in_flight, shares = state.in_flight, state.shares
    # Infinite where a source may not send: there a share is projected to 0.
    network_s = np.where(network.admissible, cost.network_s(network), inf)
    costs = _Past(cost.at(network, in_flight), network.delay_s / step_s)
    sent = _Past(network.demand[:, None] * shares, network.delay_s / step_s)
    loads, flows = np.empty((steps, len(in_flight))), np.empty((steps, len(in_flight)))
    summed, tail = np.zeros_like(shares), tail_of(steps)
    for index in range(steps):
        loads[index], flows[index] = in_flight, network.demand @ shares
        if index >= tail.start:
            summed += shares
        served = network.rates_rps(in_flight)
        in_flight = np.maximum(in_flight + step_s * (sent.delayed().sum(axis=0) - served), 0.0)
        # Shares follow the loads of the same moment: of the other order a step would be one more delay in the loop.
        costs.push(cost.at(network, in_flight))
        shares = rule(shares, costs.delayed() + network_s, step_s)
        sent.push(network.demand[:, None] * shares)
    time_s: Array = step_s * np.arange(steps, dtype=np.float64)
    mean_shares: Array = summed / (tail.stop - tail.start)
    return Trajectory(step_s, time_s, loads, flows, mean_shares, State(in_flight, shares))


class _Past:
    """The last values of something by cell, or by source and cell, looked up each arc's delay ago."""

    def __init__(self, first: Array, lags: Array) -> None:
        """lags: delays by source and cell, in steps. Before the first value there were only its likes."""
        self._whole = np.floor(lags).astype(np.intp)
        self._part = lags - self._whole
        self._source, self._cell = np.indices(lags.shape)
        self._values = np.empty((int(self._whole.max()) + 2, *lags.shape))
        self._values[:] = first
        self._at = 0

    def push(self, value: Array) -> None:
        """Take over the value of now."""
        self._at = (self._at + 1) % len(self._values)
        self._values[self._at] = value

    def delayed(self) -> Array:
        """What each source sees of each cell, or each cell of each source, by source and cell."""
        row = (self._at - self._whole) % len(self._values)
        newer: Array = self._values[row, self._source, self._cell]
        older: Array = self._values[row - 1, self._source, self._cell]
        return newer + self._part * (older - newer)
