"""The lifeline seen from a process that holds on to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlbctl.fleet.lifeline import LIFELINE_VARIABLE, Lifeline
from tests.package import FOLDER

HOLD = "from dlbctl.fleet.lifeline import watch_lifeline; watch_lifeline(grace_s=0.2); {then}"
POLITE = HOLD.format(then="print('up', flush=True); import signal; signal.pause()")
DEAF = HOLD.format(then="import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()")


def process(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if name != LIFELINE_VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**own, "PYTHONPATH": str(FOLDER), **environment},
    )


@pytest.mark.parametrize(("code", "exit_code"), [(POLITE, -15), (DEAF, 1)])
def test_a_process_ends_when_the_lifeline_is_let_go(tmp_path: Path, code: str, exit_code: int) -> None:
    lifeline = Lifeline(tmp_path / "lifeline")
    with process(code, lifeline.environment()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert child.poll() is None
        lifeline.close()
        assert child.wait(10) == exit_code


def test_a_process_that_starts_after_its_supervisor_died_ends_at_once(tmp_path: Path) -> None:
    lifeline = Lifeline(tmp_path / "lifeline")
    lifeline.close()
    with process(POLITE, lifeline.environment()) as child:
        assert child.wait(10) == -15


def test_without_a_lifeline_a_process_runs_on(tmp_path: Path) -> None:
    with process(HOLD.format(then="import threading; print(threading.active_count())"), {}) as child:
        assert child.communicate(timeout=10)[0] == "1\n"
        assert child.returncode == 0


def test_a_pipe_that_a_killed_supervisor_left_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lifeline")
    with Lifeline(tmp_path / "lifeline") as lifeline:
        assert repr(lifeline) == f"Lifeline({str(tmp_path / 'lifeline')!r})"
    assert not (tmp_path / "lifeline").exists()
