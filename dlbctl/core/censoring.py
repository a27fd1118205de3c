"""What requests in flight tell of latencies: that each will have taken longer than it has so far.

Of the requests that arrived lately only the short ones have ended. So their mean says too little, and says so for as
long as it takes the long ones to end: exactly when a cell has become slow. Under a log-normal whose relative spread all
bins share, the mean m of a bin is the fixed point of m = (sum w y + sum v E[Y | Y > r; m]) / (sum w + sum v), over
latencies y that are known and ages r of what is open. Where nothing is open, or all is young, it is the plain mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

# Squared coefficients of variation. A log-normal of more has a tail that no server has: it comes of having guessed.
CV_SQ_MIN, CV_SQ_MAX = 0.05**2, 1.5**2
# While a cell is steady the spread is found at once. When most is open it is found slowly, the more is guess the
# slower: further rounds then bring more noise than truth.
ROUNDS = 25
# From one round to the next, small beside the noise of the largest bins there are, 2 %.
_TOLERANCE = 1e-3
_ROOT_TAU = sqrt(2.0 * pi)
# erfc(x) exp(x²) (1 + x/2) = exp(this polynomial in 1 / (1 + x/2)), highest power first: to 1.2e-7 (Numerical
# Recipes, section 6.2). numpy has no erf, and scipy is not for routers.
_ERFC_HIGH = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807)
_ERFC_LOW = (-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223)
_ERFC = np.array((*_ERFC_HIGH, *_ERFC_LOW))


@dataclass(frozen=True, slots=True)
class Ended:
    """Sums over each bin's requests that have ended: of their weights, and of those times y and y²."""

    weight: Floats
    latency_s: Floats
    latency_sq: Floats


@dataclass(frozen=True, slots=True)
class Open:
    """Requests in flight as parallel arrays: the place of their bin, their age [s], their weight."""

    place: Places
    age_s: Floats
    weight: Floats


class Completion:
    """The fixed point, in steps of some 0.1 ms: `while not completion.step(): ...`.

    mean_s: of each bin. cv_sq: the squared coefficient of variation that they share. told: how many ended requests each
    one in flight is worth, from 0 to its weight. One that has just come is worth nothing and moves no mean, one far
    older than the mean is worth whole. Every bin holds some that ended: ages alone do not tell when they will end.
    """

    def __init__(self, ended: Ended, still: Open) -> None:
        self._ended = ended
        self._open = still
        self._log_age = np.log(still.age_s)
        self._total = ended.weight + self._sums(still.weight)
        self._rounds = 0
        self.mean_s = ended.latency_s / ended.weight
        self.cv_sq = _shared_cv_sq(ended.weight, ended.latency_s, ended.latency_sq)
        self.told = np.zeros_like(still.weight)

    def __repr__(self) -> str:
        return f"<Completion of {len(self.mean_s)} bins and {len(self.told)} in flight, {self._rounds} rounds>"

    def step(self) -> bool:
        """A step of Newton's for the means and one of expectation for the spread; true once it is over."""
        still, mean_s = self._open, self.mean_s
        variance = log(1.0 + self.cv_sq)
        sd = sqrt(variance)
        here_s = mean_s[still.place]
        z = (self._log_age - np.log(here_s) + 0.5 * variance) / sd
        tail, tail_mean, tail_square = (_log_upper_tail(z - power * sd) for power in range(3))
        expected_s = here_s * np.exp(tail_mean - tail)
        squares_s = here_s**2 * np.exp(tail_square - tail) * (1.0 + self.cv_sq)
        # d ln E[Y | Y > r] / d ln m: the share of E that was put in, and is not told by the age.
        put_in = np.clip(1.0 - (_hazard(z, tail) - _hazard(z - sd, tail_mean)) / sd, 0.0, 1.0)
        whole_s = self._ended.latency_s + self._sums(still.weight * expected_s)
        whole_sq = self._ended.latency_sq + self._sums(still.weight * squares_s)
        excess = whole_s / mean_s - self._total
        slope = self._total - self._sums(still.weight * expected_s * put_in) / mean_s
        move = np.clip(excess / slope, -0.75, 3.0)  # in shares of the mean
        self.told = still.weight * (1.0 - put_in)
        self.mean_s = mean_s * (1.0 + move)
        before, self.cv_sq = self.cv_sq, _shared_cv_sq(self._total, whole_s, whole_sq)
        self._rounds += 1
        settled = np.abs(move).max() < _TOLERANCE and abs(self.cv_sq - before) < _TOLERANCE * (1.0 + before)
        return bool(settled) or self._rounds == ROUNDS

    def _sums(self, of: Floats) -> Floats:
        """By bin, of what is open."""
        return np.bincount(self._open.place, of, len(self._ended.weight)).astype(np.float64)


def _shared_cv_sq(weight: Floats, latency_s: Floats, latency_sq: Floats) -> float:
    """Squared coefficient of variation of all bins together, each around its own mean, from their sums."""
    squares = float((latency_sq * (weight / latency_s) ** 2).sum())
    return min(max(squares / float(weight.sum()) - 1.0, CV_SQ_MIN), CV_SQ_MAX)


def _log_upper_tail(z: Floats) -> Floats:
    """ln P(Z > z) of a standard normal, to a relative 1.2e-7 however far out."""
    x = np.abs(z) / sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * x)
    tail = np.log(0.5 * t) + np.polyval(_ERFC, t) - x * x
    upper: Floats = np.where(z > 0.0, tail, np.log1p(-np.exp(tail)))
    return upper


def _hazard(z: Floats, log_upper_tail: Floats) -> Floats:
    """φ(z) / P(Z > z)."""
    hazard: Floats = np.exp(-0.5 * z * z - log_upper_tail) / _ROOT_TAU
    return hazard
