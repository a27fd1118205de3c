"""The least of many numbers of which few change at a time.

A tree of pairwise minima: a change costs a logarithm of how many there are, the least nothing, and whoever is within a
limit of it is found without a look at the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

_NEVER: Final = float("inf")
# Of more equals than this one is drawn by trial: they are so many that a trial soon finds one.
LISTED: Final = 64


class Tournament:
    """Numbers by place, 0 to count - 1. What is no number counts as infinite."""

    def __init__(self, values: Sequence[float]) -> None:
        self.count = len(values)
        self._width = 1
        while self._width < self.count:
            self._width *= 2
        width = self._width
        tree: list[float] = [_NEVER] * (2 * width)
        for place, value in enumerate(values):
            tree[width + place] = min(_NEVER, value)
        for node in range(width - 1, 0, -1):
            left, right = tree[2 * node], tree[2 * node + 1]
            tree[node] = min(left, right)
        self._tree = tree

    def __repr__(self) -> str:
        return f"<Tournament of {self.count}, the least is {self.least:.4g}>"

    @property
    def least(self) -> float:
        """The least number; infinite where there is none."""
        return self._tree[1]

    @property
    def winner(self) -> int:
        """Where the least number stands; the first place of several."""
        tree = self._tree
        node = 1
        while node < self._width:
            node *= 2
            if tree[node] > tree[node + 1]:
                node += 1
        return node - self._width

    def change(self, place: int, value: float) -> None:
        """The number at a place is now this."""
        tree = self._tree
        node = self._width + place
        tree[node] = min(_NEVER, value)
        while node > 1:
            node //= 2
            left, right = tree[2 * node], tree[2 * node + 1]
            least = min(left, right)
            if tree[node] == least:
                return
            tree[node] = least

    def within(self, limit: float) -> list[int]:
        """Places of numbers up to a finite limit, in no order; of very many some, more than can be wanted."""
        tree, width = self._tree, self._width
        found: list[int] = []
        waiting = [1]
        while waiting and len(found) <= LISTED:
            node = waiting.pop()
            if tree[node] > limit:
                continue
            if node >= width:
                found.append(node - width)
            else:
                waiting.append(2 * node)
                waiting.append(2 * node + 1)
        return found

    def any_within(self, limit: float, rng: random.Random) -> tuple[int, bool]:
        """A place whose number is up to a finite limit, each as likely, and whether it was the only one."""
        found = self.within(limit)
        if len(found) == 1:
            return found[0], True
        if len(found) <= LISTED:
            found.sort()  # as a look at all has them, for the same choice by the same chance
            return found[int(rng.random() * len(found))], False
        while True:
            place = int(rng.random() * self.count)
            if self._tree[self._width + place] <= limit:
                return place, False
