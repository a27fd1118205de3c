"""The latency samples a curve is fitted to: a bounded store of recent ones, and their reduction to bins.

Everything that informs a fit is a *point*: a load, a latency, and the number of fresh samples it is worth. A
sample is a point, a bin of a leaf peer is a heavier one; both are reduced alike to at most 24 bins.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbctl.core.censoring import Completion, Ended, Open

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
_GOLDEN = 0.6180339887498949
# A sample stands for at most so many times as many requests as a usual one.
_SHARERS_MAX = 4.0


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


class InFlight(NamedTuple):
    """Requests that have not ended: the load each met and how long it is known to take at least [s].

    each: how many requests one of them stands for, where they are too many to be looked at one by one.
    """

    loads: list[float]
    ages_s: list[float]
    each: float = 1.0


NOTHING = InFlight([], [])


class SampleStore:
    """The newest latency samples of one cell and endpoint, in fixed memory, weighted 2^(-age / half_life_s).

    Age counts from a request's arrival, and what is still in flight has its say (`censoring`): so a change shows in
    full by the requests since. Ages from ends would need none of that in a steady cell, where ends in a window are an
    unbiased draw; but after a change the long ones have yet to end.

    The ring has to span several half-lives at any rate, or a busy cell would know only the loads of its last
    seconds. So it has a pace: what comes faster shares the newest slot, and one of those samples, drawn
    uniformly, stays and counts for them: of requests that came together the short ones end first, perhaps at another
    pace than the long ones. A quarter of the ring may run ahead of the pace, so a burst in a quiet cell is kept whole.
    """

    __slots__ = (
        "_arrivals_s",
        "_burst_s",
        "_due_s",
        "_filled",
        "_latencies_s",
        "_loads",
        "_newest",
        "_pace_s",
        "_rng",
        "_sharers",
        "capacity",
        "half_life_s",
    )

    _SPAN_HALF_LIVES = 3.0
    _BURST_SHARE = 0.25

    def __init__(self, rng: Random, *, capacity: int = 4096, half_life_s: float = 90.0) -> None:
        self.capacity = capacity
        self.half_life_s = half_life_s
        self._rng = rng
        self._arrivals_s = array("d", bytes(8 * capacity))
        self._loads = array("d", bytes(8 * capacity))
        self._latencies_s = array("d", bytes(8 * capacity))
        self._sharers = array("d", bytes(8 * capacity))
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

    def add(self, now_s: float, arrived_s: float, n: float, latency_s: float) -> None:
        """Take the sample of a request that arrived then and succeeded now.

        n >= 0: requests in flight per server when it arrived. latency_s > 0: from its arrival at the leaf
        to the last upstream byte, without the time its client stalled.
        """
        if self._due_s > now_s:
            self._sharers[self._newest] += 1.0
            if self._rng.random() * self._sharers[self._newest] < 1.0:
                self._put(self._newest, arrived_s, n, latency_s)
            return
        # Virtual scheduling (GCRA): the ring may run at most _burst_s ahead of its pace.
        self._due_s = max(self._due_s, now_s - self._burst_s) + self._pace_s
        slot = self._newest + 1
        if slot == self.capacity:
            slot = 0
        if self._filled < self.capacity:
            self._filled += 1
        self._newest = slot
        self._sharers[slot] = 1.0
        self._put(slot, arrived_s, n, latency_s)

    def _put(self, slot: int, arrived_s: float, n: float, latency_s: float) -> None:
        self._arrivals_s[slot] = arrived_s
        self._loads[slot] = n
        self._latencies_s[slot] = latency_s

    def clear(self) -> None:
        """Forget all samples."""
        self._newest, self._filled = -1, 0

    def bins(self, now_s: float, in_flight: InFlight = NOTHING) -> list[Bin]:
        """At most BIN_LIMIT equal-weight bins in order of load; empty without samples that have ended."""
        reduction = self.reduction(now_s, in_flight)
        while not reduction.step():
            pass
        return reduction.bins()

    def reduction(self, now_s: float, in_flight: InFlight = NOTHING) -> Reduction:
        """The way to the bins in steps, for whom all at once takes too long."""
        filled = self._filled
        age_s = now_s - np.frombuffer(self._arrivals_s)[:filled]
        age_weight = np.exp2(-age_s / self.half_life_s)
        n = np.clip(np.frombuffer(self._loads)[:filled], 0.0, LOAD_MAX)
        latency_s = np.clip(np.frombuffer(self._latencies_s)[:filled], LATENCY_MIN_S, LATENCY_MAX_S)
        known_s = now_s - self._known_since_s()
        weight, kept = _shared_out(np.where(age_s <= known_s, age_weight, 0.0), np.frombuffer(self._sharers)[:filled])
        open_n = np.clip(in_flight.loads, 0.0, LOAD_MAX)
        open_s = np.clip(in_flight.ages_s, LATENCY_MIN_S, LATENCY_MAX_S)
        open_weight = np.where(open_s <= known_s, kept * in_flight.each * np.exp2(-open_s / self.half_life_s), 0.0)
        return Reduction(_Points(n, latency_s, latency_s**2, weight), _Cut(open_n, open_s, open_weight))

    def _known_since_s(self) -> float:
        """Of what arrived since, all that ended has been heard of; of what came before, a full ring keeps only the long."""
        if self._filled < self.capacity:
            return float("-inf")
        oldest = (self._newest + 1) % self.capacity
        return self._arrivals_s[oldest] + self._latencies_s[oldest]


def _shared_out(age_weight: Floats, sharers: Floats) -> tuple[Floats, float]:
    """Each kept sample's weight by all that it stands for, and what one request in flight weighs beside them.

    Together they weigh what tells as much in equal weights (Kish's effective size). One slot that was shared by far more
    than the others, as in a burst, may not outweigh them all.
    """
    if not len(sharers):
        return age_weight, 1.0
    stands_for = np.minimum(sharers, _SHARERS_MAX * np.median(sharers))
    whole = float((stands_for * age_weight).sum())
    if whole < _NEGLIGIBLE:
        return age_weight, 1.0
    kept = whole / float((stands_for**2 * age_weight).sum())
    return kept * stands_for * age_weight, kept


def pooled(bins: Iterable[Bin]) -> list[Bin]:
    """Bins of several leaves of one cell as if one leaf had seen all the samples."""
    table = np.array([msgspec.structs.astuple(b) for b in bins], dtype=float).reshape(-1, 4)
    n, latency_s, n_eff, cv = table.T
    return Reduction(_Points(n, latency_s, latency_s**2 * (1.0 + cv**2), n_eff)).bins()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Requests in flight as parallel arrays: load, age [s], weight."""

    n: Floats
    age_s: Floats
    weight: Floats


class Reduction:
    """Points made into equal-weight bins over the loads in order: BIN_LIMIT of them, fewer while samples are few.

    A load seen often fills several bins. Together they weigh what they should, and each stays small enough
    for the robust loss to bound the pull of one odd group. What is in flight joins the bins of what has ended, and has
    its say in steps: `while not reduction.step(): ...`, then `reduction.bins()`.
    """

    def __init__(self, points: _Points, cut: _Cut | None = None) -> None:
        self._cut = cut
        self._sums = np.empty((4, 0))
        self._completion: Completion | None = None
        total = points.n_eff.sum()
        if total < _NEGLIGIBLE:
            return
        kept = np.flatnonzero(points.n_eff > _NEGLIGIBLE * total)
        order = kept[np.argsort(points.n[kept], kind="stable")]
        weight, n = points.n_eff[order], points.n[order]
        reached = np.cumsum(weight)
        count = int(min(max(total / BIN_SAMPLES_MIN, 1.0), BIN_LIMIT))
        label = np.minimum(((reached - 0.5 * weight) / total * count).astype(np.intp), count - 1)
        columns = (np.ones_like(points.n), points.n, points.latency_s, points.latency_sq)
        sums = [np.bincount(label, weights=weight * column[order], minlength=count) for column in columns]
        self._sums = np.array(sums)
        if cut is not None and len(cut.n):
            self._place = _places(cut.n, n, np.concatenate(([0.0], reached)), count)
            ended = Ended(self._sums[0], self._sums[2], self._sums[3])
            self._completion = Completion(ended, Open(self._place, cut.age_s, cut.weight))

    def __repr__(self) -> str:
        return f"<Reduction to {self._sums.shape[1]} bins, {self._completion or 'nothing in flight'}>"

    def step(self) -> bool:
        """Do a piece; true once there is nothing left to do."""
        return self._completion is None or self._completion.step()

    def bins(self) -> list[Bin]:
        """At most BIN_LIMIT bins; none without points."""
        return _bins(self._sums if self._completion is None else self._told(self._completion))

    def _told(self, completion: Completion) -> Floats:
        """The sums, of what has ended and of what that and the ages of the rest tell together."""
        assert self._cut is not None
        n_eff, n, latency_s, latency_sq = self._sums
        told, count = completion.told, len(n_eff)
        all_n_eff = n_eff + np.bincount(self._place, told, count)
        all_n = n + np.bincount(self._place, told * self._cut.n, count)
        mean_s = completion.mean_s
        # The relative spread of each bin is that of what has ended there.
        square = mean_s**2 * (latency_sq * n_eff / latency_s**2)
        return np.stack((all_n_eff, all_n, mean_s * all_n_eff, square * all_n_eff))


def _places(open_n: Floats, n: Floats, reached: Floats, count: int) -> NDArray[np.intp]:
    """The bins of requests in flight, by loads n in order and the weights reached: those of one load are spread fairly.

    Multiples of the golden ratio fill an interval evenly, and in no order of age.
    """
    low = reached[np.searchsorted(n, open_n, side="left")]
    high = reached[np.searchsorted(n, open_n, side="right")]
    between = np.arange(1, len(open_n) + 1) * _GOLDEN % 1.0
    place = ((low + between * (high - low)) / reached[-1] * count).astype(np.intp)
    fair: NDArray[np.intp] = np.minimum(place, count - 1)
    return fair


def _bins(sums: Floats) -> list[Bin]:
    """Bins from the sums of weight and of weight times load, latency and squared latency."""
    n_eff, n, latency_s, latency_sq = sums[:, sums[0] > 0.0]
    n, latency_s, latency_sq = n / n_eff, latency_s / n_eff, latency_sq / n_eff
    cv = np.sqrt(np.maximum(latency_sq / latency_s**2 - 1.0, 0.0))
    rows = np.clip(np.stack((n, latency_s, n_eff, cv), axis=1), _BIN_MIN, _BIN_MAX)
    return [Bin(*row) for row in rows.tolist()]
