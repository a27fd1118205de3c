"""`dlbctl simulate fluid`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.commands import EXAMPLES, dlbctl

REGIONS = EXAMPLES / "simulate" / "three-regions.toml"
PIGOU = EXAMPLES / "simulate" / "pigou.toml"


def fluid(*words: object) -> dict[str, object]:
    code, out, err = dlbctl("simulate", "fluid", *words, "--json")
    assert (code, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


def test_people_see_states_outcome_and_plot() -> None:
    code, out, err = dlbctl("simulate", "fluid", REGIONS, "--policy", "flow/latency", "--time", 200)
    assert (code, err) == (0, "")
    assert "200 requests/s, 77.8% of what the cells serve; flow/latency for 200 s" in out
    assert "wardrop             1.32 s        1.0208" in out
    assert "flow/latency: has converged; in the last quarter up to 0." in out
    assert "it swings from" in out
    assert "in flight: 1 us-ashburn   2 eu-frankfurt   3 ap-seoul" in out


def test_on_pigous_pair_latency_routing_costs_a_third() -> None:
    found = fluid(PIGOU, "--policy", "flow/latency", "--time", 100)
    assert found["price_of_anarchy"] == pytest.approx(4 / 3, rel=1e-4)
    assert found["utilisation"] is None
    states = {row["state"]: row for row in found["states"]}  # type: ignore[attr-defined]
    assert states["flow/latency"]["over_optimum"] == pytest.approx(4 / 3, rel=1e-2)
    narrow = [row for row in found["cells"] if row["cell"] == "narrow"]  # type: ignore[attr-defined]
    assert [round(row["share"], 2) for row in narrow] == [0.5, 1.0, 0.62, 1.0]


def test_without_a_file_it_is_the_example_and_a_large_stepsize_swings() -> None:
    swinging = fluid("--time", 200)
    assert swinging["verdict"]["outcome"] == "cycle"  # type: ignore[index]
    assert swinging["steps"]["onset"] < 1.0  # type: ignore[index]
    calm = fluid(REGIONS, "--stepsize", 0.02, "--time", 200)
    assert calm["verdict"]["outcome"] == "converged"  # type: ignore[index]
    assert calm["steps"]["onset"] > 1.0  # type: ignore[index]
    assert calm["price_of_anarchy"] == swinging["price_of_anarchy"]


def test_utilisation_scales_the_demand() -> None:
    found = fluid("--utilisation", 0.5, "--policy", "argmin/rif", "--time", 20)
    assert found["utilisation"] == pytest.approx(0.5)
    assert found["steps"] is None
    assert found["demand_rps"] == pytest.approx(128.6, rel=1e-3)


def test_a_run_that_has_not_settled_is_over_nothing() -> None:
    found = fluid("--utilisation", 0.9999, "--time", 10)
    assert found["verdict"]["outcome"] in ("settling", "diverging")  # type: ignore[index]
    ratios = [row["over_optimum"] for row in found["states"]]  # type: ignore[attr-defined]
    assert ratios[0] == 1.0
    assert ratios[-1] is None


def test_ctrl_c_says_that_nothing_is_reported() -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", "from dlbctl.cli import main; main()",
         "simulate", "fluid", "--time", "20000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    while not process.stderr.readline().endswith("| scipy.optimize\n"):
        pass  # the first equilibrium asks for it
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "dlbctl: error: interrupted: nothing is complete, and nothing is reported"


def test_the_run_can_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    found = fluid("--time", 5, "--csv", path)
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 500
    assert rows[0] == {
        "time_s": "0",
        "cell": "us-ashburn",
        "in_flight": "0",
        "sent_rps": "83.3333",
        "latency_s": "0.832532",
    }
    assert float(rows[-1]["time_s"]) == pytest.approx(5.0 - float(found["step_s"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--policy", "discrete/latency"], 2, "--policy: 'discrete/latency' has no fluid model\n  "),
        (["--policy", "mnlb"], 2, "--policy: 'mnlb' has no fluid model\n  one of: flow/g"),
        (["--policy", "flow/gradent"], 2, "did you mean flow/gradient"),
        (["--time", "0"], 2, "--time: 0 is not a number above 0"),
        (["--stepsize", "-1"], 2, "--stepsize: -1 is not a number above 0"),
        (["--utilisation", "1"], 2, "--utilisation: 1 is not between 0 and 1"),
        ([PIGOU, "--utilisation", "0.5"], 2, "--utilisation: this network has a link without a bound"),
        (["none.toml"], 3, "none.toml: cannot be read"),
        ([EXAMPLES / "configs" / "single.toml"], 3, "unknown key root"),
        (["--time", "1e9"], 1, "more than 5,000,000 steps"),
        (["--time", "1", "--csv", "/dev/null/run.csv"], 1, "/dev/null/run.csv: cannot be written: Not a directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_message(words: list[object], code: int, message: str) -> None:
    ended, out, err = dlbctl("simulate", "fluid", *words)
    assert (ended, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
