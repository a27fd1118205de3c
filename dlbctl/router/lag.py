"""How late a router's event loop runs: what every request waits on top of its own work."""

from __future__ import annotations

import asyncio
import time

from dlbctl.router.tally import Histogram

PERIOD_S = 0.25
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class LoopLag:
    """Samples, four times a second, how much later than asked a timer fires: more often would cost idle processes."""

    def __init__(self) -> None:
        self.late_s = Histogram(BOUNDS_S)

    def __repr__(self) -> str:
        return f"<LoopLag {self.late_s!r}>"

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            # Not the loop's clock: uvloop's stands still within an iteration, which is just the lag sought.
            due_s = time.monotonic() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self.late_s.add(max(0.0, time.monotonic() - due_s))
