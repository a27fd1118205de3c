"""Of two random targets, the one that would serve the queue of this router with one more sooner, by its worst of late.

Finagle's `PeakEwma` with its power of two choices. The latency of a target jumps up to a slower answer at once and
sinks with a time constant of 10 s, also while nothing is heard of it, so that a target that was slow is tried again.
Its load is latency x (pending / k + 1): Finagle's, for a target of one server. One that has never answered is the
cheapest there is while nothing is pending there, and the dearest while its first answer is awaited.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.shares import pair

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

TIME_CONSTANT_S: Final = 10.0
# Longer than any answer takes.
PENALTY_S: Final = 1e6


class Latency:
    """A peak-sensitive moving average [s]: what is slower counts whole, what is faster by the time that has passed."""

    def __init__(self) -> None:
        self.value_s = 0.0
        self._at_s = 0.0

    def __repr__(self) -> str:
        return f"<Latency {self.value_s:.4g} s at {self._at_s:.3f} s>"

    def add(self, now_s: float, latency_s: float) -> None:
        """An answer took so long; 0 to have it sink for the time that has passed."""
        kept = exp(min(self._at_s - now_s, 0.0) / TIME_CONSTANT_S)
        self._at_s = now_s
        if latency_s > self.value_s:
            self.value_s = latency_s
        else:
            self.value_s = kept * self.value_s + (1.0 - kept) * latency_s


class Mechanism(mechanism.Mechanism):
    """The better of two by peak latency, which it keeps by name."""

    COST: ClassVar[str | None] = ""
    OBSERVES: ClassVar[bool] = True

    def __init__(self) -> None:
        self._known: dict[str, Latency] = {}

    def among(self, candidates: Sequence[View]) -> None:
        """Forget those that are gone."""
        names = {candidate.name for candidate in candidates}
        self._known = {name: latency for name, latency in self._known.items() if name in names}

    def observed(self, now_s: float, candidate: View, latency_s: float) -> None:
        """Learn from an answer."""
        known = self._known.get(candidate.name)
        if known is None:
            known = self._known[candidate.name] = Latency()
        known.add(now_s, latency_s)

    def choose(
        self,
        now_s: float,
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of the chosen candidate and the rule: `faster-of-2` or `tie`."""
        first, second = pair(len(candidates), rng)
        load, other = self._load_s(now_s, candidates[first]), self._load_s(now_s, candidates[second])
        if load == other:
            return first, "tie"
        return (first if load < other else second), "faster-of-2"

    def _load_s(self, now_s: float, candidate: View) -> float:
        pending = candidate.in_flight / candidate.weight if candidate.weight > 0.0 else float(candidate.in_flight)
        known = self._known.get(candidate.name)
        if known is None:
            return PENALTY_S + pending if pending > 0.0 else 0.0
        known.add(now_s, 0.0)
        return known.value_s * (pending + 1.0)
