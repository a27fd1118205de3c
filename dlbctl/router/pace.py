"""Says when to report: soon after a change, at most once an interval, and seldom while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# While nothing changes a report only says that the leaf lives.
REST_S = 0.25


class Pace:
    """Calls `act` within an interval of each change, and every REST_S without one.

    A timer that fires a hundred times a second costs an idle process 2 % of a core, most of it in the kernel,
    and a root in front of many cells as much for each.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None], interval_s: float) -> None:
        self.interval_s = interval_s
        self._loop = loop
        self._act = act
        self._resting = True
        self._acted_s = loop.time()
        self._timer = loop.call_later(0.0, self._fire)

    def __repr__(self) -> str:
        return f"<Pace every {self.interval_s * 1e3:g} ms, {'resting' if self._resting else 'due'}>"

    def changed(self) -> None:
        """Something to report happened."""
        if self._resting:
            self._resting = False
            self._timer.cancel()
            left_s = self._acted_s + self.interval_s - self._loop.time()
            self._timer = self._loop.call_later(max(left_s, 0.0), self._fire)

    def stop(self) -> None:
        """Call no more."""
        self._resting = False
        self._timer.cancel()

    def _fire(self) -> None:
        self._acted_s = self._loop.time()
        self._resting = True
        self._timer = self._loop.call_later(max(REST_S, self.interval_s), self._fire)
        self._act()
