"""The latency samples a curve is fitted to: a bounded store of recent ones, and their reduction to bins.

Everything that informs a fit is a *point*: a load, a latency, and the number of fresh samples it is worth. A
sample is a point, a bin of a leaf peer is a heavier one; both are reduced alike to at most 24 bins.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BIN_LIMIT = 24
# A bin's mean enters the fit through its logarithm, which a mean of m samples underestimates by CV²/2m.
BIN_SAMPLES_MIN = 8.0
# What no clock or counter means; it keeps squares finite.
LATENCY_MIN_S, LATENCY_MAX_S = 1e-9, 1e9
LOAD_MAX = 1e9
COUNT_MAX = 1e12
# Means and sums of allowed values may leave their range by a rounding: n, latency_s, n_eff, cv.
_BIN_MIN = (0.0, LATENCY_MIN_S, 0.0, 0.0)
_BIN_MAX = (LOAD_MAX, LATENCY_MAX_S, COUNT_MAX, COUNT_MAX)
# A point of less than this share of the whole, or a whole of less than this, says nothing any more.
_NEGLIGIBLE = 1e-9


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
class _Points:
    """Weighted observations as parallel arrays: load, mean latency [s], mean squared latency [s²], n_eff."""

    n: Floats
    latency_s: Floats
    latency_sq: Floats
    n_eff: Floats


class SampleStore:
    """The newest latency samples of one cell and endpoint, in fixed memory, weighted 2^(-age / half_life_s).

    Age counts from a request's end, not from its arrival: every request ends once, so ends in a window are an
    unbiased draw while the cell is steady, whereas among recent arrivals only the short ones have ended.

    The ring has to span several half-lives at any rate, or a busy cell would know only the loads of its last
    seconds. So it has a pace: what comes faster shares the newest slot, and one of those samples, drawn
    uniformly, stays. It counts once, not for all it stands for: a curve is a mean given the load, where
    unequal weights add noise and remove no bias. A quarter of the ring may run ahead of the pace, so a burst
    in a quiet cell is kept whole.
    """

    __slots__ = (
        "_burst_s",
        "_due_s",
        "_filled",
        "_latencies_s",
        "_loads",
        "_newest",
        "_pace_s",
        "_rng",
        "_sharers",
        "_times_s",
        "capacity",
        "half_life_s",
    )

    _SPAN_HALF_LIVES = 3.0
    _BURST_SHARE = 0.25

    def __init__(self, rng: Random, *, capacity: int = 4096, half_life_s: float = 90.0) -> None:
        self.capacity = capacity
        self.half_life_s = half_life_s
        self._rng = rng
        self._times_s = array("d", bytes(8 * capacity))
        self._loads = array("d", bytes(8 * capacity))
        self._latencies_s = array("d", bytes(8 * capacity))
        self._newest = -1
        self._filled = 0
        self._sharers = 0
        span_s = self._SPAN_HALF_LIVES * half_life_s
        self._pace_s = span_s / capacity
        self._burst_s = self._BURST_SHARE * span_s
        self._due_s = float("-inf")

    def __len__(self) -> int:
        return self._filled

    def __repr__(self) -> str:
        return f"SampleStore({self._filled}/{self.capacity}, half_life_s={self.half_life_s:g})"

    def add(self, now_s: float, n: float, latency_s: float) -> None:
        """Take the sample of a request that succeeded now.

        n >= 0: requests in flight per server when it arrived. latency_s > 0: from its arrival at the leaf
        to the last upstream byte, without the time its client stalled.
        """
        if self._due_s > now_s:
            self._sharers += 1
            if self._rng.random() * self._sharers < 1.0:
                self._put(self._newest, now_s, n, latency_s)
            return
        # Virtual scheduling (GCRA): the ring may run at most _burst_s ahead of its pace.
        self._due_s = max(self._due_s, now_s - self._burst_s) + self._pace_s
        slot = self._newest + 1
        if slot == self.capacity:
            slot = 0
        if self._filled < self.capacity:
            self._filled += 1
        self._newest = slot
        self._sharers = 1
        self._put(slot, now_s, n, latency_s)

    def _put(self, slot: int, now_s: float, n: float, latency_s: float) -> None:
        self._times_s[slot] = now_s
        self._loads[slot] = n
        self._latencies_s[slot] = latency_s

    def bins(self, now_s: float) -> list[Bin]:
        """At most BIN_LIMIT equal-weight bins in order of load; empty without samples."""
        filled = self._filled
        age_s = now_s - np.frombuffer(self._times_s)[:filled]
        n = np.clip(np.frombuffer(self._loads)[:filled], 0.0, LOAD_MAX)
        latency_s = np.clip(np.frombuffer(self._latencies_s)[:filled], LATENCY_MIN_S, LATENCY_MAX_S)
        return _reduced(_Points(n, latency_s, latency_s**2, np.exp2(-age_s / self.half_life_s)))


def pooled(bins: Iterable[Bin]) -> list[Bin]:
    """Bins of several leaves of one cell as if one leaf had seen all the samples."""
    table = np.array([msgspec.structs.astuple(b) for b in bins], dtype=float).reshape(-1, 4)
    n, latency_s, n_eff, cv = table.T
    return _reduced(_Points(n, latency_s, latency_s**2 * (1.0 + cv**2), n_eff))


def _reduced(points: _Points) -> list[Bin]:
    """Equal-weight bins over the loads in order: BIN_LIMIT of them, fewer while samples are few.

    A load seen often fills several bins. Together they weigh what they should, and each stays small enough
    for the robust loss to bound the pull of one odd group.
    """
    total = points.n_eff.sum()
    if total < _NEGLIGIBLE:
        return []
    kept = np.flatnonzero(points.n_eff > _NEGLIGIBLE * total)
    order = kept[np.argsort(points.n[kept], kind="stable")]
    weight = points.n_eff[order]
    count = int(min(max(total / BIN_SAMPLES_MIN, 1.0), BIN_LIMIT))
    centre = (np.cumsum(weight) - 0.5 * weight) / total
    label = np.minimum((centre * count).astype(np.intp), count - 1)
    columns = (np.ones_like(points.n), points.n, points.latency_s, points.latency_sq)
    sums = [np.bincount(label, weights=weight * column[order], minlength=count) for column in columns]
    return _bins(np.array(sums))


def _bins(sums: Floats) -> list[Bin]:
    """Bins from the sums of weight and of weight times load, latency and squared latency."""
    n_eff, n, latency_s, latency_sq = sums[:, sums[0] > 0.0]
    n, latency_s, latency_sq = n / n_eff, latency_s / n_eff, latency_sq / n_eff
    cv = np.sqrt(np.maximum(latency_sq / latency_s**2 - 1.0, 0.0))
    rows = np.clip(np.stack((n, latency_s, n_eff, cv), axis=1), _BIN_MIN, _BIN_MAX)
    return [Bin(*row) for row in rows.tolist()]
