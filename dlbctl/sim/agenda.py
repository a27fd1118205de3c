"""What will happen when: virtual time, which jumps from one event to the next."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """Actions by their time; those of one time happen in the order in which they were noted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._noted = 0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []

    def __repr__(self) -> str:
        return f"<Agenda at {self.now_s:.6f} s, {len(self._entries)} to come>"

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Have something happen at a time. What is late already happens next."""
        self._noted += 1
        heappush(self._entries, (time_s, self._noted, action))

    def run(self, until_s: float) -> None:
        """Let everything happen that is due until then, and have it be then."""
        entries = self._entries
        while entries and entries[0][0] <= until_s:
            time_s, _, action = heappop(entries)
            if time_s > self.now_s:
                self.now_s = time_s
            action()
        self.now_s = max(self.now_s, until_s)
