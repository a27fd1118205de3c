"""Whether a cell that its users have left is faster by now than its curve says.

A curve forgets within minutes, by new samples outweighing old ones; a leaf's own requests are too few for that. But
they are all alike, so that a handful tells a change of pace from chance.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.curve import Curve

# So many of them make a verdict: 20 s at their usual rate. The later half says how fast the cell is now, since the
# first may be from before.
WINDOW = 10
HALF = WINDOW // 2
# Faster by less than this is within what the curve and the scaling of small requests to usual ones may be wrong by.
FASTER = 0.9
# More than is usual, because the error itself is estimated from so few.
STANDARD_ERRORS = 5.0
# What is spread over more time need not be of one pace.
AGE_MAX_S = 120.0


class Recovery:
    """The last few of a leaf's own requests: when each arrived, what load it met, and how long it took."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)

    def __repr__(self) -> str:
        return f"<Recovery of {len(self._seen)}>"

    def add(self, arrived_s: float, load: float, latency_s: float) -> None:
        """One more."""
        self._seen.append((arrived_s, load, latency_s))

    def verdict(self, now_s: float, curve: Curve) -> tuple[float, float] | None:
        """If the cell is faster than the curve has it: by which factor, and since when at the latest.

        Never slower: a curve that is too low corrects itself at once, by the users whom it draws; one that is too high
        would keep them away.
        """
        if len(self._seen) < WINDOW or now_s - self._seen[0][0] > AGE_MAX_S:
            return None
        ratios = [latency_s / curve.latency_s(load) for _, load, latency_s in self._seen]
        if fmean(ratios) + STANDARD_ERRORS * stdev(ratios) / sqrt(WINDOW) > FASTER:
            return None
        since_s = self._seen[HALF][0]
        self._seen.clear()
        return fmean(ratios[HALF:]), since_s
