"""One coarse timer for all time limits: a connection moves its deadline by assignment, thousands of times a second.

A timer of the event loop costs a microsecond to set and another to cancel; this costs a list append when a
deadline moves closer and nothing when it moves away. Limits fire up to one tick late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

TICK_S: Final = 0.1
# A connection is looked at within this long, however far away its deadline: one that has ended must not be kept
# until a deadline of ten minutes would have come.
FAR_TICKS: Final = round(30.0 / TICK_S)
NEVER: Final = float("inf")

_LOG = logging.getLogger(__name__)


class Watched(Protocol):
    """Something with a deadline. look_s: when the wheel will next look at it; only the wheel writes it."""

    deadline_s: float
    look_s: float

    def expired(self, now_s: float) -> None:
        """The deadline has passed."""


class Wheel:
    """Buckets of watched things by tick, and one timer for the next tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self.clock = clock
        self._buckets: dict[int, list[Watched]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tick = int(clock() / TICK_S)

    def __repr__(self) -> str:
        return f"<Wheel {sum(map(len, self._buckets.values()))} watched>"

    def watch(self, item: Watched, deadline_s: float) -> None:
        """Set a deadline. Moving one further away needs no call: assign `item.deadline_s`."""
        item.deadline_s = deadline_s
        if deadline_s < item.look_s:
            self._put(item, deadline_s)

    def stop(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()

    def _put(self, item: Watched, at_s: float) -> None:
        if self._timer is None:
            self._tick = int(self.clock() / TICK_S)
            self._timer = self._loop.call_later(TICK_S, self._turn)
        # A deadline may be long past; the ticks up to the last one are never looked at again.
        tick = min(max(int(at_s / TICK_S), self._tick), self._tick + FAR_TICKS) + 1
        item.look_s = tick * TICK_S
        self._buckets.setdefault(tick, []).append(item)

    def _turn(self) -> None:
        now_s = self.clock()
        first, self._tick = self._tick, int(now_s / TICK_S)
        for tick in range(first, self._tick + 1):
            for item in self._buckets.pop(tick, ()):
                self._look(item, tick, now_s)
        self._timer = self._loop.call_later(TICK_S, self._turn) if self._buckets else None

    def _look(self, item: Watched, tick: int, now_s: float) -> None:
        if item.look_s != tick * TICK_S:
            return  # it is looked at elsewhere, sooner
        item.look_s = NEVER
        if item.deadline_s <= now_s:
            self._tell(item, now_s)
        elif item.deadline_s != NEVER:
            self._put(item, item.deadline_s)

    def _tell(self, item: Watched, now_s: float) -> None:
        """Whatever one of them does, time must not stop for the others."""
        try:
            item.expired(now_s)
        except Exception:
            _LOG.exception("a fault of our own at the deadline of %r", item)
