"""The latency samples a curve is fitted to: a bounded store of recent ones, and their reduction to bins.

Everything that informs a fit is a *point*: a weight, a load, a latency. A sample is a point, a bin of a leaf
peer is a heavier one, and `reduced` makes at most 24 equal-weight bins of any mixture of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import inf
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
# A weight under this share of the whole (or, as a whole, of one fresh sample) says nothing any more.
_WEIGHT_MIN = 1e-9


class Bin(msgspec.Struct, frozen=True):
    """The mean of samples of similar load; what leaves of one cell send each other, as JSON.

    weight: requests it stands for, decayed. n: mean load [requests in flight per server].
    latency_s: mean latency. n_eff: how many fresh samples would tell as much.
    cv: coefficient of variation of the latencies inside.

    Raises ValueError (msgspec.ValidationError when decoded) for numbers no samples have.
    """

    weight: float
    n: float
    latency_s: float
    n_eff: float
    cv: float

    def __post_init__(self) -> None:
        counts = 0.0 < self.weight < inf and 0.0 < self.n_eff < inf and 0.0 <= self.cv < inf
        if not (counts and 0.0 <= self.n <= LOAD_MAX and LATENCY_MIN_S <= self.latency_s <= LATENCY_MAX_S):
            raise ValueError("bin: weight, n_eff and latency_s must be positive, n and cv at least 0")


class Points(msgspec.Struct, frozen=True):
    """Weighted observations as parallel arrays.

    weight: requests it stands for, decayed. n_eff: fresh samples that would tell as much. Then the load, the
    mean latency [s] and the mean squared latency [s²]. A request still in flight can be a point too, with
    the latency it is expected to have: the way censored requests enter a fit.
    """

    weight: Floats
    n_eff: Floats
    n: Floats
    latency_s: Floats
    latency_sq: Floats


class SampleStore:
    """The newest latency samples of one cell and endpoint, in fixed memory, weighted 2^(-age / half_life_s).

    Age counts from a request's end, not from its arrival: every request ends once, so ends in a window are an
    unbiased draw while the cell is steady, whereas among recent arrivals only the short ones have ended.

    The ring has to span several half-lives at any rate, or a busy cell would know only the loads of its last
    seconds. Samples beyond `capacity` per `_SPAN_HALF_LIVES` share the newest slot: one of them, drawn
    uniformly, stands there with the count of all. Half of the ring may fill faster than that pace, so a
    burst in a quiet cell is kept whole.
    """

    __slots__ = (
        "_burst_s",
        "_counts",
        "_due_s",
        "_filled",
        "_latencies_s",
        "_loads",
        "_newest",
        "_pace_s",
        "_rng",
        "_times_s",
        "capacity",
        "half_life_s",
    )

    _SPAN_HALF_LIVES = 3.0
    _BURST_SHARE = 0.5

    def __init__(self, rng: Random, *, capacity: int = 4096, half_life_s: float = 90.0) -> None:
        self.capacity = capacity
        self.half_life_s = half_life_s
        self._rng = rng
        self._times_s = array("d", bytes(8 * capacity))
        self._loads = array("d", bytes(8 * capacity))
        self._latencies_s = array("d", bytes(8 * capacity))
        self._counts = array("d", bytes(8 * capacity))
        self._newest = -1
        self._filled = 0
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
            self._share_newest(now_s, n, latency_s)
            return
        # Virtual scheduling (GCRA): the ring may run at most _burst_s ahead of its pace.
        self._due_s = max(self._due_s, now_s - self._burst_s) + self._pace_s
        slot = self._newest + 1
        if slot == self.capacity:
            slot = 0
        if self._filled < self.capacity:
            self._filled += 1
        self._newest = slot
        self._times_s[slot] = now_s
        self._loads[slot] = n
        self._latencies_s[slot] = latency_s
        self._counts[slot] = 1.0

    def _share_newest(self, now_s: float, n: float, latency_s: float) -> None:
        slot = self._newest
        count = self._counts[slot] + 1.0
        self._counts[slot] = count
        if self._rng.random() * count < 1.0:
            self._times_s[slot] = now_s
            self._loads[slot] = n
            self._latencies_s[slot] = latency_s

    def points(self, now_s: float) -> Points:
        """Every sample kept, at its weight now."""
        filled = self._filled
        age_s = now_s - np.frombuffer(self._times_s)[:filled]
        decay = np.exp2(-age_s / self.half_life_s)
        weight = decay * np.frombuffer(self._counts)[:filled]
        n = np.clip(np.frombuffer(self._loads)[:filled], 0.0, LOAD_MAX)
        latency_s = np.clip(np.frombuffer(self._latencies_s)[:filled], LATENCY_MIN_S, LATENCY_MAX_S)
        return Points(weight, decay, n, latency_s, latency_s**2)

    def bins(self, now_s: float) -> list[Bin]:
        """At most BIN_LIMIT equal-weight bins in order of load; empty without samples."""
        return reduced(self.points(now_s))


def pooled(bins: Iterable[Bin]) -> list[Bin]:
    """Bins of several leaves of one cell as if one leaf had seen all the samples."""
    table = np.array([msgspec.structs.astuple(b) for b in bins], dtype=float).reshape(-1, 5)
    weight, n, latency_s, n_eff, cv = table.T
    return reduced(Points(weight, n_eff, n, latency_s, latency_s**2 * (1.0 + cv**2)))


def reduced(points: Points) -> list[Bin]:
    """Equal-weight bins over the loads in order: BIN_LIMIT of them, fewer while samples are few.

    A load seen often fills several bins. Together they weigh what they should, and each stays small enough
    for the robust loss to bound the pull of one odd group.
    """
    total = points.weight.sum()
    if total < _WEIGHT_MIN:
        return []
    kept = np.flatnonzero(points.weight > _WEIGHT_MIN * total)
    order = kept[np.argsort(points.n[kept], kind="stable")]
    weight = points.weight[order]
    # Variance of a weighted mean, in units of one fresh sample's: sum of w² / n_eff over (sum of w)².
    spread = weight**2 / points.n_eff[order]
    count = int(min(max(total**2 / spread.sum() / BIN_SAMPLES_MIN, 1.0), BIN_LIMIT))
    centre = (np.cumsum(weight) - 0.5 * weight) / total
    label = np.minimum((centre * count).astype(np.intp), count - 1)
    sums = [
        np.bincount(label, weights=values, minlength=count)
        for values in (
            weight,
            weight * points.n[order],
            weight * points.latency_s[order],
            weight * points.latency_sq[order],
            spread,
        )
    ]
    return _bins(np.array(sums))


def _bins(sums: Floats) -> list[Bin]:
    weight, n, latency_s, latency_sq, spread = sums[:, sums[0] > 0.0]
    n, latency_s, latency_sq = n / weight, latency_s / weight, latency_sq / weight
    cv = np.sqrt(np.maximum(latency_sq / latency_s**2 - 1.0, 0.0))
    rows = np.stack((weight, n, latency_s, weight**2 / spread, cv), axis=1)
    return [Bin(*row) for row in rows.tolist()]
