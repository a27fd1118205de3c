"""`dlbctl simulate fleet` as a process: what people and programs read, exit codes, files and progress."""

from __future__ import annotations

import csv
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import EXAMPLES, dlbctl

FLEET = EXAMPLES / "configs" / "fleet-three-regions.toml"
TRACE = EXAMPLES / "traces" / "short.jsonl"
COMMAND = ("simulate", "fleet", "--trace", TRACE)


def test_people_see_every_case_its_shares_its_errors_and_what_was_assumed() -> None:
    options = ("--policy", "discrete/rif,discrete/latency", "--lose", "eu-frankfurt@5", "--add", "us-west-2=1")
    code, out, err = dlbctl(*COMMAND, "--from", FLEET, *options)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("60 requests of ")
    cases = [line for line in lines if " discrete/" in line and not line.startswith("errors")]
    name = "us-west-2 added with 1 server, eu-frankfurt lost at 5 s"
    assert [line.startswith(name) for line in cases] == [False, False, True, True] * 2
    assert any(line.startswith(f"errors, {name}, discrete/rif: ") for line in lines)
    assert any(line.startswith("beware: latencies are those of requests that went well") for line in lines)
    assert "assumed: servers of us-west-2 are like those of " in out


def test_programs_read_the_same_figures_from_json_and_csv_and_a_seed_repeats_them(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    options = ("--from", FLEET, "--demand", 1.5, "--warm-up", 2, "--max-output", 20, "--seed", 3)
    first, second = (dlbctl(*COMMAND, *options, "--json", "--csv", path) for _ in range(2))
    assert first == second
    report: dict[str, Any] = json.loads(first.out)
    assert [row["case"] for row in report["rows"]] == ["as it is", "demand x 1.5"]
    assert report["rows"][0]["figures"]["requests"] < report["requests"] == 60
    assert report["output_tokens"] <= 20
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, report["rows"], strict=True):
        assert float(line["mean_s"]) == row["figures"]["mean_s"]
        assert float(line[f"share_{row['cells'][0]['cell']}"]) == row["cells"][0]["share"]


def test_demand_that_no_fleet_bears_is_a_warning() -> None:
    code, _, err = dlbctl(*COMMAND, "--from", FLEET, "--demand", 60, "--json")
    assert code == 0
    assert "dlbctl: warning: demand x 60: demand is " in err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--from", FLEET, "--policy", "discrete/rfi"), 2, "there is no cost 'rfi'\n  did you mean rif?"),
        (("--from", FLEET, "--one-way", "eu-frankfrt=5"), 2, "did you mean eu-frankfurt?"),
        (("--from", FLEET, "--demand", "1e-9"), 2, "--demand 1e-09: must be a number above 0, from 0.0001 to 10000"),
        (("--from", FLEET, "--slow", "eu=3"), 2, "--slow: there is no cell 'eu'"),
        (("--from", FLEET, "--admin", "unix:/nowhere"), 2, "--from and --admin are two fleets"),
        (("--from", FLEET, "--from", FLEET), 2, "a FLEET.toml is a whole fleet"),
        (("--from", FLEET, "--speedup", 0), 2, "--speedup 0"),
        (("--from", FLEET, "--max-input", 1), 2, "none of its 60 rows is left to simulate"),
        (("--from", FLEET, "--profile", "h100"), 2, "says already what its servers are"),
        (("--from", "missing.toml"), 3, "missing.toml: cannot be read"),
        (("--from", FLEET, "--trace", FLEET), 3, "not a trace"),
        (("--admin", "unix:/nowhere/admin.sock"), 4, "does not answer"),
        (("--from", FLEET, "--csv", "/nowhere/cases.csv"), 1, "--csv /nowhere/cases.csv"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(options: tuple[object, ...], code: int, message: str) -> None:
    ended = dlbctl(*COMMAND, *options)
    assert ended.code == code
    assert message in ended.err
    assert ended.out == ""


def test_a_terminal_sees_progress_and_ctrl_c_reports_what_is_complete(tmp_path: Path) -> None:
    trace = tmp_path / "long.jsonl"
    with trace.open("w") as file:
        for at in range(200_000):
            file.write(
                json.dumps({"timestamp": 200 * at, "input_length": 9, "output_length": 9, "hash_ids": [at]}) + "\n"
            )
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from dlbctl.cli import main; main()", "simulate", "fleet", "--from", FLEET,
         "--trace", trace, "--policy", "discrete/rif"],
        env=os.environ | {"TERM": "xterm"}, stdout=subprocess.PIPE, stderr=theirs, text=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"run 1/1" not in seen or b"left:" not in seen:
        seen += os.read(terminal, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # it has ended
            break
    out, _ = process.communicate(timeout=30)
    os.close(terminal)
    assert process.returncode == 130, seen
    assert b"0 of 1 cases are complete" in seen
    assert out == ""
