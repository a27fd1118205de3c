"""Work over processes: the same results however many, errors raised, and nothing left running after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dlbctl.core.errors import DlbctlError, UsageError
from dlbctl.sim.processes import run_all

ROOT = Path(__file__).resolve().parents[2]


def square(number: int) -> int:
    return number * number


def fail_on_two(number: int) -> int:
    if number == 2:
        raise UsageError("two is too many", hint="take one")
    return number


def die(_: int) -> int:
    os._exit(1)


def wait_long(number: int) -> int:
    if number:
        threading.Event().wait(60.0)
    return number


def interrupted_at_two(number: int) -> int:
    if number == 2:
        raise KeyboardInterrupt
    return number


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_by_task_and_each_is_told_of_once(jobs: int) -> None:
    told: list[int] = []
    outcome = run_all(square, range(5), jobs=jobs, done=told.append)
    assert outcome.results == {0: 0, 1: 1, 2: 4, 3: 9, 4: 16}
    assert not outcome.interrupted
    assert sorted(told) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_is_raised_with_its_hint(jobs: int) -> None:
    with pytest.raises(UsageError) as caught:
        run_all(fail_on_two, range(4), jobs=jobs, done=lambda _: None)
    assert str(caught.value) == "two is too many\n  take one"


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(DlbctlError, match="died"):
        run_all(die, range(2), jobs=2, done=lambda _: None)


def test_an_interruption_keeps_what_is_done() -> None:
    outcome = run_all(interrupted_at_two, range(4), jobs=1, done=lambda _: None)
    assert outcome.interrupted
    assert outcome.results == {0: 0, 1: 1}


SCRIPT = """
import multiprocessing, sys
from tests.sim.test_processes import wait_long
from dlbctl.sim.processes import run_all
def done(number):
    print(number, *(child.pid for child in multiprocessing.active_children()), flush=True)
if __name__ == "__main__":
    outcome = run_all(wait_long, range(3), jobs=2, done=done)
    print(outcome.interrupted, outcome.results, flush=True)
"""


@pytest.mark.parametrize(("number", "last_line"), [(signal.SIGINT, "True {0: 0}"), (signal.SIGKILL, "")])
def test_no_process_survives_the_one_that_asked(number: int, last_line: str, tmp_path: Path) -> None:
    """By Ctrl-C, which a terminal sends to all of them, or by a kill, which says no goodbye."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    asking = subprocess.Popen(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert asking.stdout is not None
    first, *children = map(int, asking.stdout.readline().split())
    assert first == 0
    assert len(children) == 2
    if number == signal.SIGINT:
        os.killpg(asking.pid, number)
    else:
        asking.send_signal(number)
    # The pipes end with the last of the processes that hold them.
    out, err = asking.communicate(timeout=30)
    assert out.strip() == last_line
    assert err == "" or number == signal.SIGKILL  # then multiprocessing's tracker tells of semaphores
