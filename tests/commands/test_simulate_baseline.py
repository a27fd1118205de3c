"""`dlbctl simulate baseline` as a process: the same bytes however many processes, files, signals, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.package import FOLDER

COMMAND = (sys.executable, "-c", "from dlbctl.cli import main; main()", "simulate", "baseline")
# Runs of one simulated second: what is tested here is the command.
QUICK = ("--scenarios", 2, "--trials", 1, "--duration", 1, "--warm-up", 0, "--utilisation", 0.1, "--no-optimum")


def start(*arguments: object, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(FOLDER), "NO_COLOR": "1", "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = start(*arguments)
    out, err = process.communicate(timeout=100)
    assert "Traceback" not in err
    return process.returncode, out, err


def test_the_same_seed_gives_the_same_bytes_whatever_the_number_of_processes() -> None:
    one, two = (
        run(*QUICK, "--json", "--policies", "argmin/rif", "--seed", 5, "--interval", 0.5, "--jobs", jobs)
        for jobs in (1, 2)
    )
    assert one[0] == two[0] == 0
    assert one[1] == two[1]
    report: dict[str, Any] = json.loads(one[1])
    assert (report["pairs"], report["pairs_asked"]) == (2, 2)
    assert [row["policy"] for row in report["cases"][0]["standings"]] == ["weighted-random", "argmin/rif"]
    assert len(report["cases"][0]["trials"][0]["figures"]["series"]) == 2
    assert run(*QUICK, "--json", "--policies", "argmin/rif", "--seed", 6, "--jobs", 1)[1] != one[1]


def test_a_table_for_each_utilisation_and_y_and_a_line_of_csv_for_each_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    code, out, err = run(
        *QUICK, "--utilisation", "0.2", "--y", "1,2", "--policies", "argmin/rif", "--jobs", 1, "--csv", path
    )
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("utilisation")] == [
        f"utilisation {load}, y = {y}, 2 runs in 2 scenarios" for load in ("10%", "20%") for y in (1, 2)
    ]
    assert len(path.read_text().splitlines()) == 1 + 4 * 2 * 2
    assert err.count("\n") == 1
    assert "16 runs of" in err


def test_a_terminal_sees_how_far_it_is_and_what_is_left() -> None:
    ours, its = pty.openpty()
    try:
        process = start(*QUICK, "--policies", "argmin/rif", "--jobs", 1, stderr=its)
        os.close(its)
        out, _ = process.communicate(timeout=100)
        seen = os.read(ours, 1_000_000).decode()
    finally:
        os.close(ours)
    assert process.returncode == 0
    assert "argmin/rif" in out
    assert "4/4 runs" in seen
    assert "left:" in seen


def test_ctrl_c_reports_what_is_complete() -> None:
    process = start("--scenarios", 200, *QUICK[2:], "--policies", "argmin/rif", "--jobs", 2, "--json")
    assert process.stderr is not None
    process.stderr.readline()  # it has begun
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    report = json.loads(out)
    assert report["pairs"] < report["pairs_asked"] == 200
    assert f"interrupted: {report['pairs']} of 200 scenario trials are complete" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--utilisation", "1.2"), "utilisation 1.2: must be above 0 and below 1"),
        (("--utilisation", "most"), "--utilisation 'most': not a number"),
        (("--y", "0"), "y 0: must be a number above 0"),
        (("--y", "2,2"), "--y 2: given twice"),
        (("--burst", "--outage"), "give one"),
        (("--burst", "--utilisation", "0.97"), "must be above the utilisation of 0.97"),
        (("--noise", "1"), "noise 1: must be below 1"),
        (("--duration", "0"), "duration 0 s: must be above 0"),
        (("--warm-up", "-1"), "warm_up_s -1"),
        (("--policies", "argmin/rif,argmin/rif"), "asked for twice"),
        (("--policies", ","), "--policies ',': names nothing"),
        (("--y", "1e9"), "weeks of work, are not begun\n  a shorter --duration"),
    ],
)
def test_what_cannot_be_simulated_is_one_line_and_ends_with_2(arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.splitlines()) <= 2


def test_a_policy_that_there_is_not_is_named_with_those_that_there_are() -> None:
    code, _, err = run("--policies", "argmin/velocity")
    assert code == 2
    assert "there is no cost 'velocity'" in err
    assert "gradient" in err


def test_a_csv_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    code, _, err = run("--scenarios", 1000, "--csv", tmp_path / "missing" / "runs.csv")
    assert code == 1
    assert "runs.csv: No such file or directory" in err
