"""`dlbctl simulate step-size`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.commands import EXAMPLES, dlbctl
from tests.package import FOLDER

SHORT = ("--horizons", "2,4", "--jobs", 1)


def test_people_see_a_table_of_stepsizes_by_horizons_the_line_and_a_plot() -> None:
    code, out, err = dlbctl("simulate", "step-size", "--stepsizes", "0.02,0.1", *SHORT)
    assert code == 0
    assert "200 requests/s, 77.8% of what the cells serve; flow/gradient" in out
    assert "it swings from a stepsize of 0.0906 on" in out
    assert "/ ONSET  T = 2  T = 4" in out
    assert "along a stepsize of 0.00801 / sqrt(T)" in out
    assert "the gap falls as T^" in out
    assert "gap: 1 T = 2 s   2 T = 4 s" in out
    assert err == "4 runs\n"


def test_machines_get_json_and_a_line_of_csv_for_each_average(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    words = ("--policy", "flow/latency", "--utilisation", 0.5, "--stepsizes", 0.1, "--factor", 0.3, "--csv", path)
    code, out, _ = dlbctl(
        "simulate", "step-size", EXAMPLES / "simulate" / "three-regions.toml", *words, *SHORT, "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert (found["policy"], found["utilisation"], found["complete"]) == ("flow/latency", pytest.approx(0.5), True)
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["of"], float(row["horizon_s"])) for row in rows] == [
        ("grid", 2),
        ("grid", 4),
        ("line", 2),
        ("line", 4),
    ]
    for row, kept in zip(found["grid"] + found["line"], rows, strict=True):
        assert {name: float(kept[name]) for name in row} == pytest.approx(row, rel=1e-5)


def test_ctrl_c_reports_what_is_complete() -> None:
    words = ("--horizons", "1,2000", "--stepsizes", "0.01", "--jobs", "1", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "dlbctl", "simulate", "step-size", *words],
        env=os.environ | {"PYTHONPATH": str(FOLDER)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "3 runs\n"  # it has begun
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(out)
    assert (found["complete"], found["grid"], found["slope"]) == (False, [], None)
    assert err == "dlbctl: error: interrupted: only what is complete is reported\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--policy", "argmin/latency"), 2, "--policy: 'argmin/latency' is not what the theorem is about"),
        (("--stepsizes", "0.1,much"), 2, "--stepsizes 'much': not a number"),
        (("--horizons", "10,0"), 2, "--horizons: 0 is not a number above 0"),
        (("--factor", "nan"), 2, "--factor: nan is not a number above 0"),
        (("--horizons", "1e9"), 1, "more than 5,000,000 steps"),
        (("--csv", "/dev/null/rows.csv"), 1, "--csv /dev/null/rows.csv: Not a directory"),
    ],
)
def test_what_cannot_be_is_one_message(words: tuple[str, ...], code: int, message: str) -> None:
    ended, out, err = dlbctl("simulate", "step-size", *words, "--jobs", 1)
    assert (ended, out) == (code, "")
    assert message in err
