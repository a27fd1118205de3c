"""Switching the policy while traffic runs: nobody's request fails, and the next ones go elsewhere.

The slow cell has half of the engines, and they take three times as long. On RIF every server has as many requests
in flight, so the slow ones still take (4/3) / (4 + 4/3) = 25 % of the requests. On latency they take next to none:
an idle slow server needs 3.3 s for a request, and the others at this rate some 1.4 s.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from dlbctl.engine.sweep import poisson_times

from .fleet import Fleet, fleet, outcomes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FLEET = """
policy = "discrete/rif"
stream_interval = 8
[[region]]
name = "us-ashburn"
engines = 2
[[region]]
name = "eu-frankfurt"
engines = 4
slowdown = 3.0
[[region]]
name = "ap-seoul"
engines = 2
"""
SLOW = "eu-frankfurt"
MODEL = "qwen3-35b"
RATE_RPS, DURATION_S = 12.0, 56.0
# On RIF until the slow cell has shown enough for a curve; on latency for so long, however long the switch took.
ON_RIF_S, ON_LATENCY_S = 24.0, 12.0
# Requests that were on their way to a root when it was switched count for neither.
SETTLING_S = 1.0
# Of so many, 17.5 % at 5 % on average are one case in a thousand.
ENOUGH = 60


def write_trace(path: Path) -> None:
    """Poisson arrivals of equal requests that share no prefix."""
    with path.open("w") as file:
        for number, at_s in enumerate(poisson_times(random.Random(7), RATE_RPS, DURATION_S)):
            hash_ids = [2 * number, 2 * number + 1]
            row = {"timestamp": round(1e3 * at_s), "input_length": 600, "output_length": 60, "hash_ids": hash_ids}
            file.write(json.dumps(row) + "\n")


def switch(up: Fleet, words: tuple[str, ...], cost: str) -> None:
    """Switch every root, which must then use that cost and none that it falls back to."""
    code, out, err = up.run("policy", "set", MODEL, *words, "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert set(rows) == set(up.record.admin.split(","))
    assert {(row["policy"], row["cost"], row["why"]) for row in rows.values()} == {(f"discrete/{cost}", cost, "")}


def run_time_s(out: Path) -> float:
    """Seconds since the replay's start, as its last answers tell: there are some dozen a second."""
    return max((one.end_s for one in outcomes(out)), default=0.0)


def until_run_time(out: Path, at_s: float) -> float:
    """Wait for a second of the run; return the one it has come to."""
    gives_up_s = time.monotonic() + DURATION_S
    while (now_s := run_time_s(out)) < at_s:
        assert time.monotonic() < gives_up_s, f"the replay is still at {now_s} s"
        time.sleep(0.1)
    return now_s


def slow_share(out: Path, begin_s: float, end_s: float) -> float:
    """The slow cell's share of the requests sent in a part of the run."""
    cells = [one.cell for one in outcomes(out) if one.sent_s is not None and begin_s <= one.sent_s < end_s]
    assert len(cells) > ENOUGH
    return cells.count(SLOW) / len(cells)


def test_no_request_fails_and_the_slow_cell_is_sent_less_on_latency_than_on_rif(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    write_trace(trace)
    switched_s = []
    with fleet(FLEET, tmp_path) as up:
        replay = up.start("replay", trace, "--out", out, "--quiet")
        try:
            for words, cost, after_s in (
                (("discrete/latency",), "latency", ON_RIF_S),
                (("--cost", "gradient"), "gradient", ON_LATENCY_S),
            ):
                before_s = until_run_time(out, run_time_s(out) + after_s)
                switch(up, words, cost)
                switched_s.append((before_s, run_time_s(out) + SETTLING_S))
            code, _, err = replay.wait(within_s=60)
        finally:
            replay.kill()
        assert code == 0, err
        assert up.run("policy", "revert", MODEL).code == 0
    assert {one.result for one in outcomes(out)} == {"ok"}
    (rif_ends, latency_begins), (latency_ends, gradient_begins) = switched_s
    rif = slow_share(out, 3.0, rif_ends)
    latency = slow_share(out, latency_begins, latency_ends)
    gradient = slow_share(out, gradient_begins, DURATION_S)
    print(f"the slow cell's share: rif {rif:.1%}, latency {latency:.1%}, gradient {gradient:.1%}")
    assert latency <= 0.7 * rif
    assert gradient <= 0.7 * rif
