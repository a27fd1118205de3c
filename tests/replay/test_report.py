"""The summary's numbers, from outcomes made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dlbctl.core.errors import DlbctlError, UsageError
from dlbctl.replay.journal import FILES, Journal
from dlbctl.replay.outcome import Outcome
from dlbctl.replay.report import Spread, Summary, flatten, spread, summarise
from dlbctl.replay.slo import Objective
from dlbctl.replay.tables import tables
from dlbctl.replay.tally import Tally
from dlbctl.replay.trace import LeftOut

if TYPE_CHECKING:
    from pathlib import Path

OUTCOME = Outcome(
    line=1,
    result="ok",
    scheduled_s=1.0,
    sent_s=1.5,
    first_byte_s=2.5,
    first_token_s=3.0,
    end_s=5.0,
    model="m",
    session="s",
    input_tokens=100,
    prompt_tokens=110,
    completion_tokens=5,
    cached_tokens=55,
    target="t",
    cell="us",
    server="s1",
    status=200,
    error=None,
    detail="",
    request_id="r",
    moved=0,
    reconnected=False,
)
FAILED = msgspec.structs.replace(OUTCOME, result="failed", error="http-503", cell=None, server=None, moved=2)
CUT = msgspec.structs.replace(OUTCOME, result="interrupted", sent_s=None, reconnected=True)
LATE_S = [0.0] * 98 + [0.02, 0.02]


def summary(*outcomes: Outcome, objective: Objective | None = None, late_s: list[float] | None = None) -> Summary:
    tally, left_out = Tally(objective), LeftOut()
    left_out.add("not-json", 9, "not JSON")
    for outcome in outcomes:
        tally.add(outcome, [0.5, 1.5])
    rows = len(outcomes) + 1
    return summarise(tally, left_out, late_s or [0.001], rows=rows, objective=objective, run={"trace": "t.jsonl"})


def test_latencies_count_from_the_scheduled_instant() -> None:
    assert OUTCOME.lag_s == 0.5
    assert OUTCOME.ttft_s == 2.0
    assert OUTCOME.e2e_s == 4.0
    assert OUTCOME.tpot_s == 0.5


def test_every_row_is_counted_once_and_failures_have_no_latency() -> None:
    found = summary(OUTCOME, FAILED, FAILED, CUT)
    counts = found.counts
    assert (counts.rows, counts.sent, counts.left_out) == (5, 4, 1)
    assert (counts.ok, counts.failed, counts.interrupted, counts.moved, counts.reconnected) == (1, 2, 1, 2, 1)
    assert found.failed == {"http-503": 2}
    assert found.left_out["not-json"].lines == ["line 9: not JSON"]
    assert (found.e2e_s.count, found.ttft_s.count, found.schedule_lag_s.count) == (1, 1, 3)


def test_a_row_too_many_or_too_few_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="!= 5 rows"):
        summarise(Tally(), LeftOut(), [], rows=5, objective=None, run={})


def test_tokens_rates_and_shares_come_from_usage_and_headers() -> None:
    other = msgspec.structs.replace(OUTCOME, cell="eu", end_s=10.0, prompt_tokens=None, completion_tokens=None)
    found = summary(OUTCOME, OUTCOME, OUTCOME, other)
    assert (found.tokens.prompt, found.tokens.cached_share, found.tokens.prompt_rescale) == (330, 0.5, 1.1)
    assert (found.rates.requests_per_s, found.rates.output_tokens_per_s) == (0.4, 1.5)
    assert {name: part.share for name, part in found.shares["cell"].items()} == {"us": 0.75, "eu": 0.25}
    assert found.counts.without_usage == 1


@pytest.mark.parametrize(("target", "met"), [(None, None), (0.5, True), (0.51, False)])
def test_goodput_is_a_share_of_all_that_was_sent(target: float | None, met: bool | None) -> None:
    slow = msgspec.structs.replace(OUTCOME, first_token_s=4.0)
    found = summary(OUTCOME, OUTCOME, FAILED, slow, objective=Objective(2.5, 30.0, target))
    assert found.slo is not None
    assert (found.slo.share, found.slo.met) == (0.5, met)


def test_a_late_event_loop_makes_the_run_invalid_and_says_by_how_much() -> None:
    assert summary(OUTCOME).valid
    late = summary(OUTCOME, late_s=LATE_S)
    assert not late.valid
    assert late.invalid_because == ["the replay's own event loop was 20.0 ms late at p99 (limit 5 ms)"]


def test_percentiles_of_a_sample_and_of_none() -> None:
    found = spread([float(value) for value in range(101)])
    assert found == Spread(101, 50.0, 90.0, 95.0, 99.0, 100.0, 50.0)
    assert spread([]) == Spread(0)


def test_the_csv_names_every_number_once() -> None:
    flat = flatten(summary(OUTCOME, objective=Objective(2.0)))
    assert {
        "rows",
        "ok",
        "ttft_s_p50",
        "e2e_s_p99",
        "schedule_lag_s_max",
        "tokens_prompt",
        "goodput",
    } <= flat.keys()
    assert all(value is None or isinstance(value, str | int | float) for value in flat.values())


def test_names_of_servers_are_shown_as_they_are() -> None:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as shown:
        for table in tables(summary(msgspec.structs.replace(OUTCOME, server="[bold]s[/bold]"))):
            console.print(table)
    assert "server [bold]s[/bold]" in shown.get()


def test_a_directory_with_a_former_run_is_refused_or_wholly_replaced(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.record(OUTCOME)
        journal.finish(summary(OUTCOME))
    with pytest.raises(UsageError, match="former run"):
        Journal(tmp_path)
    with Journal(tmp_path, force=True) as journal:
        journal.record(FAILED)
    assert {path.name for path in tmp_path.iterdir()} == {FILES[0]}
    (line,) = (tmp_path / FILES[0]).read_bytes().splitlines()
    assert msgspec.json.decode(line, type=Outcome) == FAILED


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DlbctlError, match="cannot write"):
        Journal(tmp_path / "file" / "out")
