"""What a curve is fitted to: bins, each the mean of requests that met about the same load.

Everything that informs a fit is a *point*: a load, a latency, and the number of fresh samples it is worth. A
sample is a point, a bin of a leaf peer is a heavier one; both are reduced alike to at most 24 bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbctl.core.censoring import Completion, Ended, Open

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

BIN_LIMIT = 24
# A bin's mean enters the fit through its logarithm, which a mean of m samples underestimates by CV²/2m.
BIN_SAMPLES_MIN = 8.0
# Past its 95th percentile such a bin has two requests.
TAIL_SHARE = 0.95
TAIL_BIN_SAMPLES_MIN = 40.0
# What no clock or counter means; it keeps squares finite.
LATENCY_MIN_S, LATENCY_MAX_S = 1e-9, 1e9
LOAD_MAX = 1e9
COUNT_MAX = 1e12
# A point of less than this share of the whole, or a whole of less than this, says nothing any more.
NEGLIGIBLE = 1e-9
# Means and sums of allowed values may leave their range by a rounding: n, latency_s, n_eff, cv.
_BIN_MIN = (0.0, LATENCY_MIN_S, 0.0, 0.0)
_BIN_MAX = (LOAD_MAX, LATENCY_MAX_S, COUNT_MAX, COUNT_MAX)
_GOLDEN = 0.6180339887498949


class Bin(msgspec.Struct, frozen=True):
    """The mean of samples of similar load; what leaves of one cell send each other, as JSON.

    n: mean load [requests in flight per server]. latency_s: mean latency. n_eff: sum of the samples' weights,
    the number of fresh ones that would tell as much. cv: coefficient of variation of the latencies.

    Raises ValueError (msgspec.ValidationError when decoded) for numbers no samples have.
    """

    n: float
    latency_s: float
    n_eff: float
    cv: float

    def __post_init__(self) -> None:
        measured = 0.0 <= self.n <= LOAD_MAX and LATENCY_MIN_S <= self.latency_s <= LATENCY_MAX_S
        if not (measured and 0.0 < self.n_eff <= COUNT_MAX and 0.0 <= self.cv <= COUNT_MAX):
            raise ValueError("bin: latency_s and n_eff must be positive, n and cv at least 0")


@dataclass(frozen=True, slots=True)
class Points:
    """Weighted observations as parallel arrays: load, mean latency [s], mean squared latency [s²], n_eff."""

    n: Floats
    latency_s: Floats
    latency_sq: Floats
    n_eff: Floats


@dataclass(frozen=True, slots=True)
class Cut:
    """Requests in flight as parallel arrays: load, age [s], weight."""

    n: Floats
    age_s: Floats
    weight: Floats


NOTHING_CUT = Cut(np.empty(0), np.empty(0), np.empty(0))


def pooled(bins: Iterable[Bin]) -> list[Bin]:
    """Bins of several leaves of one cell as if one leaf had seen all the samples."""
    table = np.array([msgspec.structs.astuple(b) for b in bins], dtype=float).reshape(-1, 4)
    n, latency_s, n_eff, cv = table.T
    return Reduction(Points(n, latency_s, latency_s**2 * (1.0 + cv**2), n_eff)).bins()


class Reduction:
    """Points made into equal-weight bins over the loads in order: BIN_LIMIT of them, fewer while samples are few.

    A load seen often fills several bins. Together they weigh what they should, and each stays small enough
    for the robust loss to bound the pull of one odd group. What is in flight joins the bins of what has ended, and has
    its say in steps: `while not reduction.step(): ...`, then `reduction.bins()`.
    """

    def __init__(self, points: Points, cut: Cut = NOTHING_CUT) -> None:
        self._completion: Completion | None = None
        total = float(points.n_eff.sum())
        kept = np.flatnonzero(points.n_eff > NEGLIGIBLE * total) if total > NEGLIGIBLE else np.empty(0, np.intp)
        order = kept[np.argsort(points.n[kept], kind="stable")]
        self._n, self._latency_s, self._weight = points.n[order], points.latency_s[order], points.n_eff[order]
        self._reached = np.concatenate(([0.0], np.cumsum(self._weight)))
        label, count = self._labels(BIN_SAMPLES_MIN)
        columns = (np.ones_like(self._n), self._n, self._latency_s, points.latency_sq[order])
        self._sums = np.array([np.bincount(label, self._weight * column, count) for column in columns])
        if count and len(cut.n):
            self._cut, self._place = cut, self._places(cut.n, count)
            weight, _, latency_s, latency_sq = self._sums
            self._completion = Completion(
                Ended(weight, latency_s, latency_sq), Open(self._place, cut.age_s, cut.weight)
            )

    def __repr__(self) -> str:
        return f"<Reduction to {self._sums.shape[1]} bins, {self._completion or 'nothing in flight'}>"

    def step(self) -> bool:
        """Do a piece; true once there is nothing left to do."""
        return self._completion is None or self._completion.step()

    def bins(self) -> list[Bin]:
        """At most BIN_LIMIT bins; none without points."""
        return _bins(self._sums if self._completion is None else self._told(self._completion))

    def tail(self) -> list[Bin]:
        """Bins of the 95th percentile instead of the mean, with a CV that makes CV²/n_eff its relative variance.

        What is in flight moves a percentile as it does the mean: the shape is taken to be that of what has ended.
        """
        label, count = self._labels(TAIL_BIN_SAMPLES_MIN)
        moved = self._moved()
        edges = np.searchsorted(label, np.arange(count + 1)).tolist()
        return [self._tail_bin(slice(*edge), moved) for edge in pairwise(edges) if edge[0] < edge[1]]

    def _labels(self, samples_min: float) -> tuple[Places, int]:
        """The bin of each point, and how many bins there are."""
        total = self._reached[-1]
        if total < NEGLIGIBLE:
            return np.empty(0, np.intp), 0
        count = int(min(max(total / samples_min, 1.0), BIN_LIMIT))
        middle = (self._reached[:-1] + self._reached[1:]) * 0.5
        label: Places = np.minimum((middle / total * count).astype(np.intp), count - 1)
        return label, count

    def _places(self, open_n: Floats, count: int) -> Places:
        """The bin of each request in flight. Those of a load that fills several bins are spread over them fairly.

        Multiples of the golden ratio fill an interval evenly, and in no order of age.
        """
        low = self._reached[np.searchsorted(self._n, open_n, side="left")]
        high = self._reached[np.searchsorted(self._n, open_n, side="right")]
        between = np.arange(1, len(open_n) + 1) * _GOLDEN % 1.0
        place = ((low + between * (high - low)) / self._reached[-1] * count).astype(np.intp)
        within: Places = np.minimum(place, count - 1)
        return within

    def _told(self, completion: Completion) -> Floats:
        """The sums, of what has ended and of what that and the ages of the rest tell together."""
        n_eff, n, latency_s, latency_sq = self._sums
        told, count = completion.told, len(n_eff)
        all_n_eff = n_eff + np.bincount(self._place, told, count)
        all_n = n + np.bincount(self._place, told * self._cut.n, count)
        mean_s = completion.mean_s
        # The relative spread of each bin is that of what has ended there.
        square = mean_s**2 * (latency_sq * n_eff / latency_s**2)
        return np.stack((all_n_eff, all_n, mean_s * all_n_eff, square * all_n_eff))

    def _moved(self) -> Floats:
        """By how much what is in flight has moved the mean at each point."""
        if self._completion is None:
            return np.ones_like(self._n)
        n_eff, n, latency_s, _ = self._sums
        moved: Floats = np.interp(self._n, n / n_eff, self._completion.mean_s / (latency_s / n_eff))
        return moved

    def _tail_bin(self, members: slice, moved: Floats) -> Bin:
        weight, latency_s = self._weight[members], self._latency_s[members]
        n_eff = float(weight.sum())
        n, factor = float(weight @ self._n[members]) / n_eff, float(weight @ moved[members]) / n_eff
        order = np.argsort(latency_s, kind="stable")
        rank = (np.cumsum(weight[order]) - 0.5 * weight[order]) / n_eff
        # Of so many samples the share below the true percentile has this SD: the order statistics that far apart
        # are its own SD to both sides.
        sd = sqrt(TAIL_SHARE * (1.0 - TAIL_SHARE) / n_eff)
        low, here, high = np.interp((TAIL_SHARE - sd, TAIL_SHARE, TAIL_SHARE + sd), rank, np.log(latency_s[order]))
        row = (n, exp(here) * factor, n_eff, 0.5 * float(high - low) * sqrt(n_eff))
        return Bin(*(min(max(x, least), most) for x, least, most in zip(row, _BIN_MIN, _BIN_MAX, strict=True)))


def _bins(sums: Floats) -> list[Bin]:
    """Bins from the sums of weight and of weight times load, latency and squared latency."""
    n_eff, n, latency_s, latency_sq = sums[:, sums[0] > 0.0]
    n, latency_s, latency_sq = n / n_eff, latency_s / n_eff, latency_sq / n_eff
    cv = np.sqrt(np.maximum(latency_sq / latency_s**2 - 1.0, 0.0))
    rows = np.clip(np.stack((n, latency_s, n_eff, cv), axis=1), _BIN_MIN, _BIN_MAX)
    return [Bin(*row) for row in rows.tolist()]
