"""How late the event loop runs: the measure of whether an engine's timings can be believed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

PERIOD_S = 0.02
INVALID_ABOVE_S = 0.005
"""Above this p99 the engine measured the machine rather than the model."""

_CELL_S = 0.0001
_CELLS = 10_000


class LoopLag:
    """Samples, fifty times a second, how much later than asked a timer fires; one for a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts = [0] * _CELLS
        self._samples = 0
        self._arm()

    def record(self, late_s: float) -> None:
        """Count one sample, in seconds; early is not late."""
        self._counts[min(_CELLS - 1, max(0, int(late_s / _CELL_S)))] += 1
        self._samples += 1

    def p99_s(self) -> float:
        """The lag that at most one sample in a hundred exceeds, in seconds, to 0.1 ms; 0 without samples."""
        allowed = self._samples // 100
        for cell in reversed(range(_CELLS)):
            allowed -= self._counts[cell]
            if allowed < 0:
                return cell * _CELL_S
        return 0.0

    def stop(self) -> None:
        """Take no more samples."""
        self._timer.cancel()

    def _arm(self) -> None:
        # Not loop.time(): uvloop's stands still within an iteration, which is just the lag sought.
        self._due_s = time.monotonic() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._sample)

    def _sample(self) -> None:
        self.record(time.monotonic() - self._due_s)
        self._arm()
