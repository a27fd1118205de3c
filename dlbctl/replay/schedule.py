"""The open loop: what is due is released at its instant, whether or not anything was answered."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Schedule:
    """Releases requests 0, 1, 2, ... when due, all of one instant at once, none early.

    due_s: instants after `start`, ascending [s]. max_in_flight holds requests back; their due instants stay,
    so that the wait shows as lag. The loop's timers count milliseconds: a release may be 1 ms late.
    """

    def __init__(
        self,
        due_s: Sequence[float],
        release: Callable[[int], None],
        *,
        clock: Callable[[], float],
        max_in_flight: int | None = None,
    ) -> None:
        self._due_s = due_s
        self._release = release
        self._clock = clock
        self._room = math.inf if max_in_flight is None else max_in_flight
        self._held: deque[int] = deque()
        self._next = 0
        self._origin_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        self.released = 0
        self.all_released = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Schedule {self.released}/{len(self._due_s)} released, {self.in_flight} in flight>"

    def start(self, origin_s: float) -> None:
        """Begin; origin_s is the clock's reading at which a request due at 0 is due."""
        self._origin_s = origin_s
        self._tick()

    def stop(self) -> None:
        """Release nothing more; `released` says how far it came."""
        if self._timer is not None:
            self._timer.cancel()
        self._next = len(self._due_s)
        self._held.clear()
        self.all_released.set()

    def ended(self) -> None:
        """One released request has ended: there may be room for one held back."""
        self.in_flight -= 1
        assert self.in_flight >= 0, "more requests ended than were released"
        self._release_held()

    def _tick(self) -> None:
        now_s = self._clock() - self._origin_s
        while self._next < len(self._due_s) and self._due_s[self._next] <= now_s:
            self._held.append(self._next)
            self._next += 1
        self._release_held()
        if self._next < len(self._due_s):
            wait_s = self._due_s[self._next] - (self._clock() - self._origin_s)
            # Rounded up to the timer's own step: rounded down it would fire early and spin.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, math.ceil(wait_s * 1e3) / 1e3), self._tick)

    def _release_held(self) -> None:
        while self._held and self.in_flight < self._room:
            self.in_flight += 1
            self.released += 1
            self._release(self._held.popleft())
        if self._next == len(self._due_s) and not self._held:
            self.all_released.set()
