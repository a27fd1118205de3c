"""The admission queue of one endpoint at a leaf: requests that wait for a server with room.

A root never queues: a request waits where a slot can come free, and the root's cost sees the wait.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange


class AdmissionQueue:
    """Exchanges by priority, then in the order they came. Bounded by whoever adds to it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Exchange]] = []

    def __repr__(self) -> str:
        return f"<AdmissionQueue {len(self)} waiting>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Exchange]:
        return iter([exchange for _, _, exchange in self._waiting])

    def add(self, exchange: Exchange) -> None:
        """Put it behind all of its priority that came before it; one that failed elsewhere keeps its turn."""
        insort(self._waiting, _entry(exchange))

    def remove(self, exchange: Exchange) -> None:
        """Take it out; ValueError when it is not there."""
        self._waiting.remove(_entry(exchange))

    def ahead_of(self, exchange: Exchange) -> int:
        """How many would be served before it."""
        mine = _entry(exchange)
        return sum(entry < mine for entry in self._waiting)

    @property
    def first(self) -> Exchange:
        """Whose turn it is."""
        return self._waiting[0][2]

    @property
    def last(self) -> Exchange:
        """Who gives way to somebody more important."""
        return self._waiting[-1][2]


def order(exchange: Exchange) -> tuple[int, int]:
    """Sorts exchanges by their turn."""
    return -exchange.arrival.priority, exchange.number


def _entry(exchange: Exchange) -> tuple[int, int, Exchange]:
    # Numbers are unique, so exchanges themselves are never compared.
    return -exchange.arrival.priority, exchange.number, exchange
