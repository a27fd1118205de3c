"""Independent pieces of work spread over processes. Their results do not depend on how many there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dlbctl.core.errors import DlbctlError

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Result]):
    """Results by the number of their task; not all are there when the user interrupted."""

    results: dict[int, Result] = field(default_factory=dict)
    interrupted: bool = False


def run_all(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    jobs: int,
    begun: Callable[[], None] = lambda: None,
    done: Callable[[int], None],
) -> Outcome[Result]:
    """Do `work` on every task in `jobs` processes, in this one when jobs is 1; `done` hears each task's number.

    From `begun` on, Ctrl-C ends it with what is done. Whatever a task raises ends it too, and is raised.
    """
    outcome: Outcome[Result] = Outcome()
    try:
        begun()
        for number, result in _alone(work, tasks) if jobs == 1 else _together(work, tasks, jobs):
            outcome.results[number] = result
            done(number)
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


def _alone(work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
    for number, task in enumerate(tasks):
        yield number, work(task)


def _together(work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Result]]:
    # Not by fork: what a process has loaded by then must not decide what its children compute.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent)
    finished = False
    try:
        # A terminal's Ctrl-C reaches the children too. They inherit that it is blocked, and are ended by us.
        with _interrupts_blocked():
            numbers: dict[Future[Result], int] = {executor.submit(work, task): n for n, task in enumerate(tasks)}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
        finished = True
    except BrokenProcessPool as error:
        raise DlbctlError("a process that simulated died", hint="too little memory? use fewer --jobs") from error
    finally:
        # The processes are asked for before the shutdown, which forgets them.
        children = multiprocessing.active_children()
        executor.shutdown(wait=finished, cancel_futures=True)
        if not finished:
            for child in children:
                child.terminate()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """A parent that was killed says no goodbye, and its queue stays open: other children hold its ends too."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
