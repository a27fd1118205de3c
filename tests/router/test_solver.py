"""The solver's process: there once it is needed, replaced when it fails, gone with its router."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator

import pytest

from dlbctl.core.events import Event, Solve, Solved
from dlbctl.core.offline import Action
from dlbctl.core.programs import NetworkLatencyProgram
from dlbctl.core.settings import TierSettings
from dlbctl.router.eventlog import RecordedTier
from dlbctl.router.solver import Solver

from .live import on_loop, until

# A near cell with room for 17 of 20 requests/s at the target, and a far one for the rest.
PROGRAM_20 = NetworkLatencyProgram(("far", "near"), (100.0, 20.0), ("here",), (20.0,), ((0.1, 0.001),))
ASKED = Solve("m", PROGRAM_20)


class Asking:
    """A tier, and what it has been told."""

    def __init__(self) -> None:
        self.told: list[Solved] = []
        self.tier = RecordedTier(TierSettings("root", "here"), "b00t", self.note)

    def note(self, at_s: float, event: Event, action: Action | None) -> None:
        assert isinstance(event, Solved)
        self.told.append(event)


@contextlib.asynccontextmanager
async def running(solver: Solver) -> AsyncIterator[Solver]:
    work = asyncio.create_task(solver.run())
    try:
        yield solver
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert solver.pid is None


def clock() -> float:
    return 7.0


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def solved_by(solver: Solver, asking: Asking, count: int) -> None:
    solver.ask(asking.tier, ASKED)
    await until(lambda: len(asking.told) == count, "it was solved")


@on_loop
async def test_starts_with_the_first_program_and_keeps_its_process_for_the_next() -> None:
    asking = Asking()
    async with running(Solver(clock)) as solver:
        pids = [solver.pid]
        for count in (1, 2):
            await solved_by(solver, asking, count)
            pids.append(solver.pid)
    before, first, second = pids
    assert before is None
    assert first == second
    for solved in asking.told:
        assert solved.endpoint == "m"
        (row,) = solved.solution.shares
        assert row == pytest.approx((0.15, 0.85))
    assert first is not None
    assert not exists(first)


@on_loop
async def test_a_process_that_died_is_replaced_for_the_next_program() -> None:
    asking = Asking()
    async with running(Solver(clock)) as solver:
        await solved_by(solver, asking, 1)
        first = solver.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: not exists(first), "it is dead and buried")
        await solved_by(solver, asking, 2)
        assert solver.pid not in {None, first}


@on_loop
async def test_one_that_is_not_needed_for_a_while_ends() -> None:
    asking = Asking()
    async with running(Solver(clock, idle_s=0.05)) as solver:
        await solved_by(solver, asking, 1)
        await until(lambda: solver.pid is None, "the process has ended")
        await solved_by(solver, asking, 2)


@on_loop
async def test_of_an_endpoint_only_the_newest_program_waits() -> None:
    asking = Asking()
    solver = Solver(clock)
    for endpoint in ("m", "m", "n", "m"):
        solver.ask(asking.tier, Solve(endpoint, PROGRAM_20))
    async with running(solver):
        await until(lambda: len(asking.told) == 2)
    assert [solved.endpoint for solved in asking.told] == ["m", "n"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import time; time.sleep(60)  # {path}", "no solution within 0.3 s"),
        ("raise SystemExit  # {path}", "its process failed: "),
        ("print('no solution', flush=True) or input()  # {path}", "its process failed: JSON is malformed"),
        ('while input(): print(\'{{"type":"unsolved","why":"too odd"}}\', flush=True)  # {path}', "too odd"),
    ],
)
def test_failures_are_told_once_and_are_no_end(program: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    @on_loop
    async def run() -> None:
        asking = Asking()
        limit_s = 0.3 if "sleep" in program else 20.0
        async with running(Solver(clock, program=program, limit_s=limit_s)) as solver:
            for attempt in range(1, 4):
                solver.ask(asking.tier, ASKED)
                await until(lambda attempt=attempt: solver.failed == attempt)  # type: ignore[misc]
        assert asking.told == []

    with caplog.at_level(logging.WARNING):
        run()
    assert [words in record.getMessage() for record in caplog.records] == [True]


@on_loop
async def test_a_program_without_a_solution_leaves_the_process_alone() -> None:
    """The same process solves the next one."""
    asking = Asking()
    nowhere = Solve("m", NetworkLatencyProgram(("a",), (1.0,), ("here", "x"), (1.0, 1.0), ((0.1,), (None,))))
    async with running(Solver(clock)) as solver:
        solver.ask(asking.tier, nowhere)
        await until(lambda: solver.failed == 1)
        pid = solver.pid
        await solved_by(solver, asking, 1)
        assert solver.pid == pid is not None
