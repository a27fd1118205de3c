"""A session stays at one target, by consistent hashing; requests without one are drawn by weight.

Maglev, Eisenbud et al., NSDI 2016, section 3.4: targets take turns to claim the next free entry, each in an order of
its own, of a table in which a hash is then looked up. Shares follow the weights to an entry, and when a target comes
or goes few entries change hands beside its own. Turns come by weight, as in Envoy's. Every router makes the same table
of the same names and weights. Loads are not looked at.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, ClassVar, Final

import xxhash

from dlbctl.core import mechanism
from dlbctl.core.shares import drawn, proportional

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

# The paper's small table, a prime: a hundred entries each for hundreds of targets.
SIZE: Final = 65537
# To make one takes tens of milliseconds, and a server that starts slowly has another weight at each look.
REMADE_S: Final = 1.0
# A session whose target is full or was tried goes to that of one of so many following entries.
FOLLOWING: Final = 64


class Mechanism(mechanism.Mechanism):
    """Consistent hashing of sessions. The table is made when it is first needed and when targets have changed."""

    COST: ClassVar[str | None] = ""

    def __init__(self) -> None:
        self._among: Sequence[View] = ()
        self._names: list[str] = []
        self._weights: list[float] = []
        self._table: list[int] = []  # the place in `_among` of each entry's target
        self._reweighed = False
        self._made_s = 0.0

    def among(self, candidates: Sequence[View]) -> None:
        """Keep the table if they are the same ones."""
        self._among = candidates
        if self._names != [candidate.name for candidate in candidates]:
            self._table = []
        self._reweighed = True

    def changed(self, candidates: Sequence[View]) -> None:
        """Look whether it was a weight that has changed."""
        weights = self._weights
        for candidate in candidates:
            if 0 <= candidate.place < len(weights) and candidate.weight != weights[candidate.place]:
                self._reweighed = True

    def choose(self, now_s: float, candidates: Sequence[View], request: Demand, rng: random.Random) -> tuple[int, str]:
        """Index of a candidate and the rule: `session`, `session-moved` where its own cannot be had, or `drawn`."""
        session = request.session
        if session and self._among:
            self._make(now_s)
            entry = session % SIZE
            if candidates is self._among:
                return self._table[entry], "session"
            places = {candidate.name: index for index, candidate in enumerate(candidates)}
            for following in range(FOLLOWING):
                index = places.get(self._names[self._table[(entry + following) % SIZE]], -1)
                if index >= 0:
                    return index, "session-moved" if following else "session"
        return drawn(self.shares(candidates), rng), "drawn"

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """In proportion to the weights; sessions are many."""
        return proportional([candidate.weight for candidate in candidates])

    def _make(self, now_s: float) -> None:
        """Have a table of those that there are, with their weights as they are, or were a second ago."""
        if self._table and not (self._reweighed and now_s >= self._made_s + REMADE_S):
            return
        self._reweighed = False
        weights = [candidate.weight for candidate in self._among]
        if not self._table or weights != self._weights:
            self._names = [candidate.name for candidate in self._among]
            self._weights = weights
            self._table = table_of(self._names, weights)
            self._made_s = now_s


def table_of(names: Sequence[str], weights: list[float]) -> list[int]:
    """Which of the targets has each entry; the same for the same names with the same weights, in whatever order."""
    shares = proportional(weights)
    owners = sorted([index for index in range(len(names)) if shares[index] > 0.0], key=lambda index: names[index])
    entries = [xxhash.xxh3_64_intdigest(names[owner].encode(), seed=0) % SIZE for owner in owners]
    skips = [xxhash.xxh3_64_intdigest(names[owner].encode(), seed=1) % (SIZE - 1) + 1 for owner in owners]
    # When the next turn of each is due: with a share of a half at 2, 4, 6...
    turns = [(1.0 / shares[owner], number) for number, owner in enumerate(owners)]
    heapify(turns)
    table = [-1] * SIZE
    for _ in range(SIZE):
        due, number = turns[0]
        owner, skip, entry = owners[number], skips[number], entries[number]
        while table[entry] >= 0:
            entry += skip
            if entry >= SIZE:
                entry -= SIZE
        table[entry] = owner
        entries[number] = entry
        heapreplace(turns, (due + 1.0 / shares[owner], number))
    return table
