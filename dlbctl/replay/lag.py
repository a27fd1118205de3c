"""How late the event loop runs: a generator that is late itself measures itself, not the target."""

from __future__ import annotations

import asyncio
import time
from array import array

_PERIOD_S = 0.01


class LoopLag:
    """Sets a timer every 10 ms and keeps by how much each was late [s]."""

    def __init__(self) -> None:
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late_s = array("d")

    def __repr__(self) -> str:
        return f"<LoopLag {len(self.late_s)} readings>"

    def start(self) -> None:
        """Begin to measure."""
        self._due_s = time.monotonic() + _PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._tick)

    def stop(self) -> None:
        """End; a timer that is overdue now is a reading too."""
        if self._timer is not None:
            self._timer.cancel()
            late_s = time.monotonic() - self._due_s
            if late_s > 0:
                self.late_s.append(late_s)

    def _tick(self) -> None:
        self.late_s.append(max(0.0, time.monotonic() - self._due_s))
        self.start()
