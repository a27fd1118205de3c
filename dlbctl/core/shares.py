"""Shares of requests: what weights come to, and drawing, by them or evenly."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

_GOLDEN: Final = 0.6180339887498949


def proportional(weights: list[float]) -> list[float]:
    """Shares in proportion to weights, summing to 1; equal ones where no weight is positive and finite."""
    known = [weight if 0.0 < weight < float("inf") else 0.0 for weight in weights]
    most = max(known, default=0.0)
    if most == 0.0:
        return [1.0 / len(weights)] * len(weights) if weights else []
    total = 0.0
    for weight in known:
        total += weight / most  # so scaled, no sum of finite weights is infinite
    return [weight / most / total for weight in known]


def drawn(shares: list[float], rng: random.Random) -> int:
    """An index drawn by shares, which need not sum to 1; never one of share 0, and -1 where all are."""
    return Urn(shares).draw(rng.random())


def pair(count: int, rng: random.Random) -> tuple[int, int]:
    """Two different indices of so many, in random order: preferring the first where they are equal is a fair coin."""
    first = int(rng.random() * count)
    second = int(rng.random() * (count - 1))
    return first, (second if second < first else second + 1)


class Urn:
    """Shares laid end to end, so that whose turn it is takes a search and not a look at all of them."""

    __slots__ = ("_ends",)

    def __init__(self, shares: Iterable[float]) -> None:
        self._ends: list[float] = list(accumulate(shares))

    def __repr__(self) -> str:
        return f"<Urn of {len(self._ends)}>"

    def draw(self, point: float) -> int:
        """The index in whose part of the line a point in [0, 1) falls; never one of share 0, -1 where all are."""
        ends = self._ends
        if not ends or ends[-1] <= 0.0:
            return -1
        total = ends[-1]
        reach = point * total
        return bisect_right(ends, reach) if reach < total else bisect_left(ends, total)


class EvenPoints:
    """Points of [0, 1) that fill it evenly: each is the last one and the golden ratio on, from a random first one.

    At every moment any part of [0, 1) has had as many as its length asks for, to within three or so, and at nearly
    equal distances (Steinhaus' three gaps). So shares drawn by them are kept at once, and not just on average: the
    deficits that a deficit round robin counts (within 1) stay nearly as small, without a look at all of them for each
    request. Nor is anybody owed requests who was full for a while. The ratio being irrational, requests that alternate
    between large and small are both spread evenly, where a round robin may send one place all the large ones.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = -1.0  # until there is chance to begin with: routers that began alike would go on alike

    def __repr__(self) -> str:
        return f"<EvenPoints, last {self._last:.3f}>"

    def next(self, rng: random.Random) -> float:
        """The next point."""
        last = self._last
        self._last = rng.random() if last < 0.0 else (last + _GOLDEN) % 1.0
        return self._last
