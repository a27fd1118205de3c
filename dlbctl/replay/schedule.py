"""The open loop: what is due is released at its instant, whether or not anything was answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from dlbctl.replay.alarm import open_alarm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlbctl.replay.alarm import Alarm


class Schedule:
    """Releases requests 0, 1, 2, ... when due, all of one instant at once, none early.

    due_s: instants after `start`, ascending [s]. max_in_flight holds requests back; their due instants stay,
    so that the wait shows as lag.
    """

    def __init__(
        self,
        due_s: Sequence[float],
        release: Callable[[int], None],
        *,
        max_in_flight: int | None = None,
    ) -> None:
        self._due_s = due_s
        self._release = release
        self._room = math.inf if max_in_flight is None else max_in_flight
        self._held: deque[int] = deque()
        self._next = 0
        self._origin_s = 0.0
        self._alarm: Alarm | None = None
        self.in_flight = 0
        self.released = 0
        self.all_released = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Schedule {self.released}/{len(self._due_s)} released, {self.in_flight} in flight>"

    def start(self, origin_s: float) -> None:
        """Begin; origin_s is the reading of time.monotonic at which a request due at 0 is due."""
        self._origin_s = origin_s
        self._alarm = open_alarm(self._tick)
        self._tick()

    def stop(self) -> None:
        """Release nothing more; `released` says how far it came."""
        self._next = len(self._due_s)
        self._held.clear()
        self._finish()

    def ended(self) -> None:
        """One released request has ended: there may be room for one held back."""
        self.in_flight -= 1
        assert self.in_flight >= 0, "more requests ended than were released"
        self._release_held()

    def _tick(self) -> None:
        now_s = time.monotonic() - self._origin_s
        while self._next < len(self._due_s) and self._due_s[self._next] <= now_s:
            self._held.append(self._next)
            self._next += 1
        self._release_held()
        if self._next < len(self._due_s) and self._alarm is not None:
            self._alarm.set(self._origin_s + self._due_s[self._next])

    def _release_held(self) -> None:
        while self._held and self.in_flight < self._room:
            self.in_flight += 1
            self.released += 1
            self._release(self._held.popleft())
        if self._next == len(self._due_s) and not self._held:
            self._finish()

    def _finish(self) -> None:
        self.all_released.set()
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
