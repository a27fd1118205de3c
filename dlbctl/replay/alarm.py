"""Waking at an instant of time.monotonic: to some tens of microseconds on Linux, to 1 ms elsewhere.

The event loop's own timers count milliseconds and round twice; requests released by them were 1.3 ms late at
the median. Linux's timerfd is exact; Python itself offers it from 3.13 on.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
# Any number may stand in a trace, and not any number in a timer.
_LONGEST_WAIT_S = 86_400.0


class Alarm(Protocol):
    """Rings once at the last instant set, or a day from now: who waits longer sets it again."""

    def set(self, instant_s: float) -> None:
        """Ring at this reading of time.monotonic, at once if it is past; replaces what was set."""

    def close(self) -> None:
        """Never ring again."""


def open_alarm(ring: Callable[[], None]) -> Alarm:
    """The best alarm that this system has; needs a running event loop."""
    libc = ctypes.CDLL(None, use_errno=True)
    return KernelAlarm(ring, libc) if hasattr(libc, "timerfd_create") else LoopAlarm(ring)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class KernelAlarm:
    """A timerfd that the event loop watches."""

    def __init__(self, ring: Callable[[], None], libc: ctypes.CDLL) -> None:
        self._ring = ring
        self._libc = libc
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_readable)

    def set(self, instant_s: float) -> None:
        """Ring at this instant."""
        # An instant of 0 would disarm it.
        ns = max(1, math.ceil(min(instant_s, time.monotonic() + _LONGEST_WAIT_S) * 1e9))
        spec = _TimerSpec(0, 0, *divmod(ns, 10**9))
        failed = self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None)
        assert not failed, os.strerror(ctypes.get_errno())

    def close(self) -> None:
        """Give the timer back."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()


class LoopAlarm:
    """The event loop's timer, rounded up to its step: rounded down it would ring early."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, instant_s: float) -> None:
        """Ring at this instant."""
        self.close()
        wait_s = min(max(0.0, instant_s - time.monotonic()), _LONGEST_WAIT_S)
        self._timer = asyncio.get_running_loop().call_later(math.ceil(wait_s * 1e3) / 1e3, self._ring)

    def close(self) -> None:
        """Forget what was set."""
        if self._timer is not None:
            self._timer.cancel()
