"""Whether flow routing settles: the fluid model linearised about its equilibrium, and what an integrated run does.

Near an equilibrium the unused arcs stay unused, and with Π_i the projection onto changes of x_i that sum to 0 over the
used ones, changes n of the loads that grow as exp(s t) satisfy

    s (s + μ_j') n_j + [Σ_i λ_i η_i E_i(s) Π_i E_i(s) F n]_j = 0,   E_i = diag(exp(-s τ_ij)),  F = diag(f_j').

With stepsizes of one proportion, η_i = κ w_i, this says that -1/κ is an eigenvalue of the loop
L(s) = diag(1 / (s (s + μ_j'))) Σ_i λ_i w_i E_i Π_i E_i F. The first κ to make the model swing is where an eigenvalue of
L(iω) crosses the negative real axis farthest out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, pi
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbctl.core.stepsize import safe_stepsize
from dlbctl.sim.equilibrium import USED, Equilibrium
from dlbctl.sim.fluid import Trajectory
from dlbctl.sim.network import Array, Network

Complex: TypeAlias = NDArray[np.complex128]

# Of all that is in flight: loads within it of the equilibrium's have converged.
CONVERGED = 0.01
# A swing that keeps this much of its size from one half of the tail to the other is one that lasts.
LASTING = 0.9
# A series that comes back is this much like itself; after one period this near to the most that it ever is.
ALIKE = 0.5
NEARLY = 0.95
FREQUENCIES = 4000
# Eigenvalues this much smaller than the largest are 0.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Onset:
    """Where swinging sets in: stepsizes that are `factor` times those asked about, with a period [s]."""

    factor: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run came to: `converged`, `settling` (nearer than before, not there), `cycle` or `diverging`.

    distance: from the equilibrium, at most, in the run's last quarter, of all that is in flight. Of a cycle: its
    period, the cell that swings most, and half of its swing [requests].
    """

    outcome: str
    distance: float
    period_s: float | None = None
    cell: str | None = None
    amplitude: float | None = None

    @property
    def lasting(self) -> bool:
        """It would go on as in its last quarter, so that means of that say something."""
        return self.outcome in ("converged", "cycle")


class Linearised:
    """The model near an equilibrium, with stepsizes η_i in the proportions given."""

    def __init__(self, network: Network, found: Equilibrium, stepsizes: Array) -> None:
        loads = found.in_flight / network.servers
        cells = list(zip(network.cells, loads.tolist(), strict=True))
        self.drain = np.array([1.0 / max(cell.service.gradient_s(n), 1e-300) for cell, n in cells])
        steepness = [_derivative(partial(found.cost.of, cell.service), n) for cell, n in cells]
        self.steepness = np.array(steepness) / network.servers
        self._used = found.flow_rps > USED * network.demand.sum()
        self._network = network
        self._delay_s = network.delay_s
        used = found.shares > USED
        self._gain = network.demand * stepsizes
        self._centred = np.array([np.diag(row.astype(float)) - np.outer(row, row) / row.sum() for row in used])

    def safe_stepsize(self) -> float:
        """η under which the loop is stable whatever the shares: sufficient, and often 5 to 20 times too careful.

        Over the cells in use, by the formula that routers use (`core.stepsize`).
        """
        network = self._network
        return safe_stepsize(
            (
                float(self.steepness[cell]),
                float(self.drain[cell]),
                [(float(network.demand[i]), float(network.round_trip_s[i, cell])) for i in sources],
            )
            for cell in np.flatnonzero(self._used)
            if (sources := np.flatnonzero(network.admissible[:, cell])).size
        )

    def loop(self, s: Complex) -> Complex:
        """L(s), for each of several s."""
        out = np.exp(-s[:, None, None] * self._delay_s)  # by s, source and cell
        looped = np.einsum("i,sij,ijl,sil->sjl", self._gain, out, self._centred, out) * self.steepness
        pole = s[:, None] * (s[:, None] + self.drain)
        return np.asarray(looped / pole[:, :, None], dtype=np.complex128)

    def onset(self) -> Onset:
        """Where the model first swings as all stepsizes grow alike; an infinite factor if it never does."""
        late_s = max(float(self._delay_s.max()), 1e-9)
        top = 10.0 * max(float(self.drain[self._used].max()), pi / late_s)
        frequency = np.geomspace(1e-5 * float(self.drain[self._used].min()), top, FREQUENCIES)
        along = np.asarray(1j * frequency, dtype=np.complex128)
        branches = _followed(np.asarray(np.linalg.eigvals(self.loop(along)), dtype=np.complex128))
        before, after = branches[:-1], branches[1:]
        crossing = (before.imag < 0.0) & (after.imag >= 0.0) & (before.real < 0.0)
        share = np.divide(before.imag, before.imag - after.imag, out=np.zeros_like(before.imag), where=crossing)
        reach = np.where(crossing, -(before.real + share * (after.real - before.real)), 0.0)
        row, column = np.unravel_index(int(reach.argmax()), reach.shape)
        if reach[row, column] <= ROUNDING * float(np.abs(branches[row]).max()):
            return Onset(inf, inf)
        at = frequency[row] + share[row, column] * (frequency[row + 1] - frequency[row])
        return Onset(float(1.0 / reach[row, column]), float(2.0 * pi / at))

    def mode(self, factor: float) -> complex:
        """The root s of the characteristic equation that is imaginary at the onset, for stepsizes `factor` times these.

        Re s is the rate [1/s] at which the swing grows or dies, Im s its angular frequency.
        """
        onset = self.onset()
        root = 2j * pi / onset.period_s
        for step in np.geomspace(onset.factor, factor, 30):
            root = self._root_near(root, float(step))
        return root

    def _root_near(self, guess: complex, factor: float) -> complex:
        """Newton's method on det(1 + factor L(s)), with a difference for its derivative."""
        for _ in range(50):
            step = 1e-6 * abs(guess)
            here, there = self._determinant(np.array([guess, guess + step]), factor)
            change = here * step / (there - here)
            guess -= complex(change)
            if abs(change) < 1e-10 * abs(guess):
                break
        return guess

    def _determinant(self, s: Complex, factor: float) -> Complex:
        return np.asarray(np.linalg.det(np.eye(len(self.drain)) + factor * self.loop(s)))


def _derivative(f: Callable[[float], float], n: float) -> float:
    step = 1e-4 * max(n, 1e-3)
    low = max(n - step, 0.0)
    return (f(n + step) - f(low)) / (n + step - low)


def _followed(eigenvalues: Complex) -> Complex:
    """Eigenvalues by frequency, ordered so that each column is one branch: each goes on with its nearest."""
    from scipy.optimize import linear_sum_assignment

    followed = eigenvalues.copy()
    for row in range(1, len(followed)):
        distance = np.abs(followed[row - 1][:, None] - followed[row][None, :])
        followed[row] = followed[row][linear_sum_assignment(distance)[1]]
    return followed


def judge(network: Network, found: Equilibrium, run: Trajectory) -> Verdict:
    """Say what a run came to, from its last quarter."""
    loads = run.in_flight[run.tail]
    total = float(found.in_flight.sum())
    distance = float(np.abs(loads - found.in_flight).sum(axis=1).max()) / total
    if distance <= CONVERGED:
        return Verdict("converged", distance)
    first, second = np.array_split(loads, 2)
    if float(first.sum(axis=1).min()) > 2.0 * total and second.sum(axis=1).mean() > 1.02 * first.sum(axis=1).mean():
        return Verdict("diverging", distance)
    swing_before, swing = np.ptp(first, axis=0) / 2.0, np.ptp(second, axis=0) / 2.0
    cell = int(swing.argmax())
    period = _period(loads[:, cell]) if swing[cell] > LASTING * swing_before[cell] else None
    if period is None or swing[cell] < CONVERGED / 2.0 * total:
        return Verdict("settling", distance)
    return Verdict("cycle", distance, period * run.step_s, network.cells[cell].name, float(swing[cell]))


def _period(values: Array) -> int | None:
    """The least shift, in samples, at which a series is like itself; none if it does not come back twice."""
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * len(centred))
    alike = np.fft.irfft(np.abs(spectrum) ** 2)[: len(centred)]
    overlap = np.arange(len(centred), 0, -1)
    alike = (alike / overlap)[: len(centred) // 2]
    below = np.flatnonzero(alike < 0.0)
    if not below.size or alike[0] <= 0.0:
        return None
    after = alike[below[0] :]
    if after.max() <= ALIKE * alike[0]:
        return None
    # After several periods it is as much like itself as after one, and by chance a little more: the first peak counts.
    high = np.flatnonzero(after > NEARLY * after.max())
    peak = np.split(high, np.flatnonzero(np.diff(high) > 1) + 1)[0]
    return int(below[0] + peak[after[peak].argmax()])
