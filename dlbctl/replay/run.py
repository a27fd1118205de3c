"""A run: rows released on schedule, sent, answered, written down."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbctl.replay.ahead import Ahead
from dlbctl.replay.answer import Answer
from dlbctl.replay.client import Client
from dlbctl.replay.lag import LoopLag
from dlbctl.replay.outcome import INTERRUPTED, outcome
from dlbctl.replay.schedule import Schedule
from dlbctl.replay.targets import ranked

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from dlbctl.replay.outcome import Outcome
    from dlbctl.replay.tally import Tally
    from dlbctl.replay.targets import Target
    from dlbctl.replay.trace import Row
    from dlbctl.replay.wire import Request, RequestWriter

# Time for the first timer to be set before the first instant.
_LEAD_S = 0.02
_WATCH_PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send, where and how fast. pace: run seconds per second of the trace."""

    rows: tuple[Row, ...]
    targets: tuple[Target, ...]
    writer: RequestWriter
    pace: float = 1.0
    max_in_flight: int | None = None
    connect_timeout_s: float = 10.0
    timeout_s: float = 600.0
    drain_timeout_s: float | None = None
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run has come."""

    elapsed_s: float
    total: int
    sent: int
    in_flight: int
    ok: int
    failed: int


class Run:
    """Carries out a plan once. `stop` ends it early; what is in flight then counts as interrupted."""

    def __init__(
        self,
        plan: Plan,
        tally: Tally,
        *,
        record: Callable[[Outcome], None],
        watch: Callable[[Standing], None],
    ) -> None:
        self._plan = plan
        self._tally = tally
        self._record = record
        self._watch = watch
        self._due_s = [row.timestamp_s * plan.pace for row in plan.rows]
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()
        self._origin_s = 0.0
        self._cut_reason = INTERRUPTED
        self._client = Client(
            plan.targets,
            connect_timeout_s=plan.connect_timeout_s,
            timeout_s=plan.timeout_s,
            tls=plan.tls,
        )
        self._requests = Ahead(len(plan.rows), lambda index: plan.writer.write(plan.rows[index]))
        self._schedule = Schedule(self._due_s, self._release, max_in_flight=plan.max_in_flight)
        self.loop_lag = LoopLag()
        self.stopped = False

    def __repr__(self) -> str:
        return f"<Run of {len(self._plan.rows)} rows, {self._tally!r}>"

    async def run(self) -> None:
        """Send every row and wait for every answer."""
        self._requests.fill()
        watching = asyncio.ensure_future(self._keep_watch())
        try:
            await self._send_all()
        finally:
            watching.cancel()
            self._schedule.stop()
            self.loop_lag.stop()
            self._client.close()
            self._watch(self._standing())

    def stop(self) -> None:
        """Send nothing more, and cut what is in flight."""
        self.stopped = True
        self._schedule.stop()
        self._cut(INTERRUPTED)

    @property
    def unsent(self) -> tuple[Row, ...]:
        """The rows that a stopped run did not come to."""
        return self._plan.rows[self._schedule.released :]

    async def _send_all(self) -> None:
        async with self._group:
            self.loop_lag.start()
            self._origin_s = time.monotonic() + _LEAD_S
            self._schedule.start(self._origin_s)
            await self._schedule.all_released.wait()
            if self._plan.drain_timeout_s is not None and self._tasks:
                await asyncio.wait(self._tasks, timeout=self._plan.drain_timeout_s)
                self._cut("drain-timeout")

    def _release(self, index: int) -> None:
        task = self._group.create_task(self._carry(index, self._requests.take()))
        self._tasks.add(task)
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The group has begun to end the run, and takes no task any more.
            self._schedule.stop()

    async def _carry(self, index: int, request: Request) -> None:
        row = self._plan.rows[index]
        answer = Answer(stream=self._plan.writer.stream)
        try:
            await self._client.send(request, ranked(self._plan.targets, row.session), answer)
        except asyncio.CancelledError:
            # Only `_cut` cancels. The task ends here, its request counted for what cut it.
            if answer.end_s is None:
                answer.fail(self._cut_reason, time.monotonic())
        self._write_down(row, request, answer, self._due_s[index])
        self._schedule.ended()

    def _write_down(self, row: Row, request: Request, answer: Answer, scheduled_s: float) -> None:
        written = outcome(row, request, answer, scheduled_s=scheduled_s, origin_s=self._origin_s)
        self._tally.add(written, answer.gaps_s)
        self._record(written)

    def _cut(self, reason: str) -> None:
        self._cut_reason = reason
        # In the loop's next turn: a task cancelled before its first step would never count its request.
        asyncio.get_running_loop().call_soon(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _keep_watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            self._watch(self._standing())

    def _standing(self) -> Standing:
        results = self._tally.results
        return Standing(
            elapsed_s=max(0.0, time.monotonic() - self._origin_s),
            total=len(self._plan.rows),
            sent=self._schedule.released,
            in_flight=self._schedule.in_flight,
            ok=results["ok"],
            failed=results["failed"],
        )
