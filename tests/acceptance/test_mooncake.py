"""Real traffic against a fleet at 66 % of its capacity: all of it served, on time, and the curves come out right.

The trace: 330 s of conversations, batches every 3 s. Rows of at most 24,000 input tokens, 64 output tokens at most:
847 rows, 8,001 tokens in and 57 out on average. An l40s engine serves 0.887 such requests a second when nothing is
cached (`capacity_rps`); 12 of them, twice as fast as life, 21.3. 5.5 times as fast as recorded the trace brings
847 / 330 s x 5.5 = 14.1 a second: 66 %. The prefix cache serves some 7 % of the prompt tokens, which makes it 62 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import pytest

from dlbctl.core.curve import Curve
from dlbctl.engine.profile import load_profile
from dlbctl.engine.sweep import capacity_rps
from dlbctl.replay.outcome import Outcome
from dlbctl.replay.report import Summary
from dlbctl.replay.trace import Row, read_trace

from .commands import REPOSITORY
from .fleet import Fleet, fleet, outcomes
from .reference import CellReference, deliveries, reference

SHARED = Path(os.environ.get("DLBCTL_SHARED", REPOSITORY.parent / "shared"))
TRACE = SHARED / "traces" / "mooncake_conversation_head1000.jsonl"
L40S = load_profile("l40s")
CELLS, ENGINES, TIME_FACTOR, SPEEDUP = 3, 4, 2.0, 5.5
MAX_INPUT, MAX_OUTPUT = 24_000, 64
FLEET = f"""
time_factor = {TIME_FACTOR}
stream_interval = 8
""" + "".join(
    f'[[region]]\nname = "{name}"\nengines = {ENGINES}\n' for name in ("us-ashburn", "eu-frankfurt", "ap-seoul")
)
# The bar of each curve, over the lower and the higher half of the loads that its cell met. Latencies at one load
# scatter, since prompts differ, and one busy second slows a whole batch: the mean of 80 has an SD of 9 %.
HALVES, CURVE_ERROR = 2, 0.15
# Halves alone would pass every other curve that does not rise at all. Thirds show the shape, but of nine so noisy
# means chance alone puts one beyond any useful bar now and then: they are judged together.
THIRDS, RMS_ERROR = 3, 0.10
# A machine that is busy with other things slows engines and routers; the replay's own event loop shows that it is.
BUSY_LAG_S, SLOWED = 0.005, 1.03

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE} is not there; DLBCTL_SHARED says where the traces are"),
]


@dataclass(frozen=True, slots=True)
class Played:
    """The run, and what the root in the first region knew after it."""

    fleet: Fleet
    summary: Summary
    outcomes: list[Outcome]
    curves: dict[str, Curve]


@pytest.fixture(scope="module")
def rows() -> dict[int, Row]:
    """The rows that are sent, by line."""
    return {row.line: row for row in read_trace(TRACE).rows if row.input_tokens <= MAX_INPUT}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("mooncake")
    options = ("--max-input", MAX_INPUT, "--max-output", MAX_OUTPUT, "--speedup", SPEEDUP, "--out", folder / "out")
    with fleet(FLEET, folder) as up:
        code, out, err = up.run("replay", TRACE, *options, "--json", "--quiet", within_s=180)
        assert code == 0, err
        curves = up.inspect("curves", up.record.regions[0].root_admin)
        yield Played(up, msgspec.json.decode(out, type=Summary), outcomes(folder / "out"), _curves(curves))


def _curves(found: list[dict[str, Any]]) -> dict[str, Curve]:
    assert all(row["curve"] for row in found), [row["why"] for row in found]
    return {row["cell"]: msgspec.convert(row["curve"], Curve) for row in found}


@pytest.fixture(scope="module")
def references(played: Played, rows: dict[int, Row]) -> dict[str, CellReference]:
    sent = deliveries(played.outcomes, rows, L40S.block_tokens, played.fleet.one_way_s)
    return {cell: reference(some, L40S, time_factor=TIME_FACTOR) for cell, some in sent.items()}


def test_the_fleet_works_at_60_to_80_percent_of_its_capacity(rows: dict[int, Row]) -> None:
    prompt = fmean(row.input_tokens for row in rows.values())
    output = fmean(min(row.output_tokens, MAX_OUTPUT) for row in rows.values())
    capacity = CELLS * ENGINES * TIME_FACTOR * capacity_rps(L40S, round(prompt), round(output))
    span_s = max(row.timestamp_s for row in rows.values()) / SPEEDUP
    assert 0.6 <= len(rows) / span_s / capacity <= 0.8


def test_every_row_is_sent_or_left_out_and_none_fails(played: Played, rows: dict[int, Row]) -> None:
    counts = played.summary.counts
    assert (counts.rows, counts.sent + counts.left_out) == (1000, 1000)
    assert (counts.sent, counts.ok, counts.failed, counts.interrupted) == (len(rows), len(rows), 0, 0)
    assert {one.line for one in played.outcomes} == set(rows)


def test_requests_are_sent_on_schedule(played: Played) -> None:
    lag_s = played.summary.schedule_lag_s.p99
    print(f"schedule lag p99 {lag_s} s, event loop lag p99 {played.summary.loop_lag_s.p99} s")
    assert lag_s is not None
    assert lag_s < 0.02


def test_clients_see_the_latency_that_the_engines_model_says(references: dict[str, CellReference]) -> None:
    ratios = [
        seen_s / sample.latency_s
        for cell in references.values()
        for sample, seen_s in zip(cell.samples, cell.seen_s, strict=True)
    ]
    assert median(ratios) == pytest.approx(1.0, abs=0.03)


def test_each_cells_curve_is_near_its_engines_own_over_the_loads_visited(
    played: Played, references: dict[str, CellReference]
) -> None:
    """By chance alone it fails in none of 280 runs in virtual time, so in under 1.1 % (docs/measurements.md)."""
    assert set(references) == set(played.curves)
    if (played.summary.loop_lag_s.p99 or 0.0) > BUSY_LAG_S and (slowed := slowest(references)) > SLOWED:
        pytest.skip(f"the run is void, the machine was busy: clients waited {slowed:.2f} times the model's time")
    halves = curve_errors(played.curves, references, bins=HALVES)
    thirds = curve_errors(played.curves, references, bins=THIRDS)
    print({place: f"{error:+.1%}" for place, error in (halves | thirds).items()})
    assert max(map(abs, halves.values())) <= CURVE_ERROR, halves
    assert sqrt(fmean(error**2 for error in thirds.values())) <= RMS_ERROR, thirds


def curve_errors(
    curves: dict[str, Curve], references: dict[str, CellReference], *, bins: int
) -> dict[tuple[str, float], float]:
    """Relative error of each curve at the mean load of each bin, by cell and load."""
    return {
        (cell, round(load, 2)): curves[cell].latency_s(load) / one.latency_s - 1
        for cell, found in references.items()
        for load, one in found.by_load(bins=bins)
    }


def slowest(references: dict[str, CellReference]) -> float:
    """What the clients of the slowest cell waited, in terms of what the engines' model says."""
    return max(sum(found.seen_s) / sum(s.latency_s for s in found.samples) for found in references.values())
