"""`dlbctl simulate noise` as a process: tables, JSON and CSV, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.commands import dlbctl

QUICK = ("--scenarios", 1, "--trials", 1, "--duration", 1, "--warm-up", 0, "--utilisation", 0.1, "--jobs", 1)


def test_no_error_is_always_among_the_amounts_and_csv_has_a_line_for_each_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    words = (*QUICK, "--policies", "argmin/latency", "--noise", "0.5,0.2", "--csv", path)
    code, out, err = dlbctl("simulate", "noise", *words, "--json")
    assert code == 0
    found = json.loads(out)
    assert [case["recipe"]["noise"] for case in found["report"]["cases"]] == [0.0, 0.2, 0.5]
    assert [(one["policy"], one["noise"]) for one in found["degradations"]] == [
        (policy, noise) for policy in ("weighted-random", "argmin/latency") for noise in (0.0, 0.2, 0.5)
    ]
    assert len(path.read_text().splitlines()) == 1 + 2 * 3
    assert "6 runs of" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--noise", "1"), "noise 1: must be below 1"),
        (("--noise", "0.1,lots"), "--noise 'lots': not a number"),
        (("--utilisation", "1.2"), "utilisation 1.2: must be above 0 and below 1"),
    ],
)
def test_what_cannot_be_simulated_is_one_message(words: tuple[str, ...], message: str) -> None:
    code, out, err = dlbctl("simulate", "noise", *QUICK[:-4], *words)
    assert (code, out) == (2, "")
    assert message in err
