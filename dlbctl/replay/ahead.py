"""Requests written before they are due, so that their instant only has to send them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Made = TypeVar("Made")

# The largest burst of one instant in the public traces has 28 rows; a prompt may be 750 KB.
_AHEAD = 48


class Ahead(Generic[Made]):
    """Makes items 0, 1, 2, ... in order, up to `ahead` before they are taken, one a turn of the loop."""

    def __init__(self, count: int, make: Callable[[int], Made], *, ahead: int = _AHEAD) -> None:
        self._count = count
        self._make = make
        self._ahead = ahead
        self._next = 0
        self._ready: deque[Made] = deque()
        self._filling = False

    def __repr__(self) -> str:
        return f"<Ahead {len(self._ready)} ready, {self._next}/{self._count} made>"

    def fill(self) -> None:
        """Make as many as are allowed, at once: before the clock starts."""
        while self._wanted():
            self._make_next()

    def take(self) -> Made:
        """The next item, made on the spot if the making has fallen behind."""
        if not self._ready:
            self._make_next()
        item = self._ready.popleft()
        if not self._filling and self._wanted():
            self._filling = True
            asyncio.get_running_loop().call_soon(self._fill_one)
        return item

    def _wanted(self) -> bool:
        return self._next < self._count and len(self._ready) < self._ahead

    def _make_next(self) -> None:
        self._ready.append(self._make(self._next))
        self._next += 1

    def _fill_one(self) -> None:
        self._filling = False
        if self._wanted():
            self._make_next()
            self._filling = True
            asyncio.get_running_loop().call_soon(self._fill_one)
