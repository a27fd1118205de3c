"""Works out what tiers ask for with `SetTimer.solve`, in a process of its own (`solver_process`).

It starts with the first program, so a router whose policies ask for none has neither the process nor its memory. One
that dies or takes too long costs its program and is replaced for the next: mechanisms ask again by themselves, and go
by their last solution until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dlbctl.core.programs import Solution
from dlbctl.router.solver_process import Unsolved

if TYPE_CHECKING:
    from dlbctl.core.events import Solve
    from dlbctl.core.programs import Program
    from dlbctl.core.tier import Tier

# A first solution has to wait for scipy, which a starved machine loads in ten seconds.
LIMIT_S = 30.0
# Kept for so long without a program: periods are shorter, and an operator may have switched to another policy.
IDLE_S = 60.0
LINE_BYTES = 64 * 1024 * 1024

# It finds the modules that this process finds, the same dlbctl first of all.
PROGRAM = "import sys; sys.path[:] = {path!r}; from dlbctl.router.solver_process import main; main()"

_DECODER: msgspec.json.Decoder[Solution | Unsolved] = msgspec.json.Decoder(Solution | Unsolved)
_LOG = logging.getLogger(__name__)


class Solver:
    """One router's programs, solved one after the other; of an endpoint's only the newest waits."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        program: str = PROGRAM,
        limit_s: float = LIMIT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """program: what Python is to run. limit_s: for one program. idle_s: until an unused process ends."""
        self.solved = 0
        self.failed = 0
        self._clock = clock
        self._program = program
        self._limit_s = limit_s
        self._idle_s = idle_s
        self._waiting: dict[tuple[Tier, str], Program] = {}
        self._asked = asyncio.Event()
        self._process: Process | None = None
        self._fault = ""

    def __repr__(self) -> str:
        process = f"process {self._process.pid}" if self._process else "no process"
        return f"<Solver {process}, {self.solved} solved, {self.failed} failed, {len(self._waiting)} waiting>"

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    def ask(self, tier: Tier, solve: Solve) -> None:
        """Have a program solved and the tier told."""
        self._waiting[tier, solve.endpoint] = solve.program
        self._asked.set()

    async def run(self) -> None:
        """Solve until cancelled."""
        try:
            while True:
                await self._until_asked()
                (tier, endpoint), program = next(iter(self._waiting.items()))
                del self._waiting[tier, endpoint]
                solution = await self._solve(program)
                if solution is not None:
                    self.solved += 1
                    tier.solved(self._clock(), endpoint, solution)
        finally:
            await self._end()

    async def _until_asked(self) -> None:
        """Return when there is something to solve; a process that is not needed meanwhile ends."""
        self._asked.clear()
        if self._waiting:
            return
        if self._process is not None:
            # Not wait_for, which in Python 3.11 swallows a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s):
                    await self._asked.wait()
            if not self._waiting:
                await self._end()
        await self._asked.wait()

    async def _solve(self, program: Program) -> Solution | None:
        """The solution; None when there is none, with the reason in the log, and the process gone if it is to blame."""
        try:
            if self._process is None or self._process.returncode is not None:
                self._process = await self._start()
            async with asyncio.timeout(self._limit_s):
                answer = await _exchange(self._process, program)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            timed_out = isinstance(error, TimeoutError)
            self._fail(f"no solution within {self._limit_s:g} s" if timed_out else f"its process failed: {error}")
            await self._end()
            return None
        if isinstance(answer, Unsolved):
            self._fail(answer.why)
            return None
        self._fault = ""
        return answer

    async def _start(self) -> Process:
        # A session of its own, so that Ctrl-C reaches the router alone, which ends this one last.
        program = self._program.format(path=sys.path)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES, start_new_session=True
        )

    def _fail(self, why: str) -> None:
        """Once for the same reason in a row: programs come every few seconds."""
        self.failed += 1
        if why != self._fault:
            self._fault = why
            _LOG.warning("solver: %s; requests go by the last solution", why)

    async def _end(self) -> None:
        """End the process; forgotten once it is gone, so that whoever is cancelled here can do it again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None


async def _exchange(process: Process, program: Program) -> Solution | Unsolved:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(program) + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it ended before it answered")
    return _DECODER.decode(line)
