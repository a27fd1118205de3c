"""The latency samples of one cell and endpoint: a bounded store of recent ones."""

from __future__ import annotations

from array import array
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dlbctl.core.bins import LATENCY_MAX_S, LATENCY_MIN_S, LOAD_MAX, NEGLIGIBLE, Bin, Cut, Floats, Points, Reduction

if TYPE_CHECKING:
    from dlbctl.core.curve import Curve

# What is revised counts for so many samples, somewhat more than a fit asks for.
_REVISED_SAMPLES = 40.0
# A sample stands for at most so many times as many requests as a usual one.
_SHARERS_MAX = 4.0


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

    def revise(self, now_s: float, before_s: float, curve: Curve, factor: float) -> None:
        """Take what arrived before that time to have taken as long as the curve says, multiplied by the factor.

        The loads that it met stay, and with them the curve's shape, as so many samples as a curve needs: what comes
        from now on soon outweighs them.
        """
        filled = self._filled
        arrivals_s = np.frombuffer(self._arrivals_s)[:filled]
        old = arrivals_s < before_s
        n = np.frombuffer(self._loads)[:filled][old]
        knee = np.logaddexp(0.0, (n - curve.c) / curve.s)
        np.frombuffer(self._latencies_s)[:filled][old] = factor * (curve.a + curve.b * curve.s * knee)
        age_weight = np.exp2((arrivals_s[old] - now_s) / self.half_life_s)
        weight, _ = _shared_out(age_weight, np.frombuffer(self._sharers)[:filled][old])
        arrivals_s[old] -= self.half_life_s * np.log2(max(weight.sum() / _REVISED_SAMPLES, 1.0))

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
        return Reduction(Points(n, latency_s, latency_s**2, weight), Cut(open_n, open_s, open_weight))

    def _known_since_s(self) -> float:
        """Of what arrived since, all that ended is in the ring; of what came before, once it is full, only the long.

        The newer half is made do with in any case.
        """
        if self._filled < self.capacity:
            return float("-inf")
        oldest = (self._newest + 1) % self.capacity
        return min(self._arrivals_s[oldest] + self._latencies_s[oldest], float(np.median(self._arrivals_s)))


def _shared_out(age_weight: Floats, sharers: Floats) -> tuple[Floats, float]:
    """Each kept sample's weight by all that it stands for, and what one request in flight weighs beside them.

    Together they weigh what tells as much in equal weights (Kish's effective size). One slot that was shared by far
    more than the others, as in a burst, may not outweigh them all.
    """
    if not len(sharers):
        return age_weight, 1.0
    stands_for = np.minimum(sharers, _SHARERS_MAX * np.median(sharers))
    whole = float((stands_for * age_weight).sum())
    if whole < NEGLIGIBLE:
        return age_weight, 1.0
    kept = whole / float((stands_for**2 * age_weight).sum())
    return kept * stands_for * age_weight, kept
