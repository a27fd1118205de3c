"""When requests come: processes against what defines them, traces against their files."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice, pairwise
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, pvariance

import pytest

from dlbctl.core.errors import ConfigError, UsageError
from dlbctl.replay.trace import Row, read_trace
from dlbctl.sim.arrivals import Request, batched, of_azure_csv, of_rows, poisson, varying
from tests.sim.worlds import until

REPOSITORY = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("DLBCTL_SHARED", REPOSITORY.parent / "shared")) / "traces"


def counts_per(width_s: float, requests: list[Request], end_s: float) -> list[int]:
    """Requests in each stretch of time."""
    by_stretch = Counter(int(one.at_s / width_s) for one in requests)
    return [by_stretch[number] for number in range(int(end_s / width_s))]


def test_poisson_streams_have_their_rates_and_a_variance_like_their_mean() -> None:
    rates = [3.0, 0.0, 12.0]
    requests = list(until(poisson(Random(1), rates), 4000.0))
    assert all(one.at_s <= other.at_s for one, other in pairwise(requests))
    assert not any(one.source == 1 for one in requests)
    for source in (0, 2):
        counts = counts_per(1.0, [one for one in requests if one.source == source], 4000.0)
        rate = rates[source]
        # Standard errors of mean and variance of 4,000 Poisson counts; 3.3 of them are passed by chance in 0.1 %.
        assert fmean(counts) == pytest.approx(rate, abs=3.3 * sqrt(rate / 4000.0))
        assert pvariance(counts) == pytest.approx(rate, abs=3.3 * sqrt((rate + 2.0 * rate**2) / 4000.0))


def test_sources_are_independent_of_each_other() -> None:
    requests = list(until(poisson(Random(2), [10.0, 10.0]), 4000.0))
    one, other = (counts_per(1.0, [r for r in requests if r.source == source], 4000.0) for source in (0, 1))
    together = [a + b for a, b in zip(one, other, strict=True)]
    # Var(a + b) = Var a + Var b only without correlation; as above.
    assert pvariance(together) == pytest.approx(20.0, abs=3.3 * sqrt((20.0 + 800.0) / 4000.0))


def test_rates_change_when_they_are_said_to() -> None:
    """Right after the change the new rate holds: one more than exponential wait begun before would blur it."""
    before, after = Counter[bool](), Counter[bool]()
    for seed in range(300):
        requests = list(until(varying(Random(seed), [(0.0, [2.0]), (10.0, [200.0]), (10.5, [0.0])]), 20.0))
        assert all(one.at_s < 10.5 for one in requests)
        before[True] += sum(9.5 <= one.at_s < 10.0 for one in requests)
        after[True] += sum(10.0 <= one.at_s < 10.05 for one in requests)
    # 300 x .5 s x 2/s = 300, 300 x .05 s x 200/s = 3,000; three standard errors.
    assert before[True] == pytest.approx(300, abs=52)
    assert after[True] == pytest.approx(3000, abs=165)


def test_demand_may_begin_late_pause_and_be_given_in_any_order() -> None:
    phases = [(8.0, [0.0, 50.0]), (2.0, [50.0, 0.0]), (4.0, [0.0, 0.0])]
    requests = list(until(varying(Random(3), phases), 12.0))
    assert {(one.source, 2.0 <= one.at_s < 4.0, one.at_s >= 8.0) for one in requests} == {
        (0, True, False),
        (1, False, True),
    }


def test_a_stream_whose_demand_ends_ends() -> None:
    assert len(list(varying(Random(3), [(0.0, [5.0]), (10.0, [0.0])]))) > 20
    assert list(varying(Random(3), [(0.0, [])])) == []


def test_sizes_are_drawn_for_each_request() -> None:
    requests = list(islice(poisson(Random(4), [1.0], lambda rng: (rng.randint(1, 9), rng.randint(10, 19))), 500))
    assert {one.prompt_tokens for one in requests} == set(range(1, 10))
    assert {one.output_tokens for one in requests} == set(range(10, 20))


def test_batches_come_whole_at_the_ends_of_their_periods() -> None:
    requests = list(until(batched(Random(5), [20.0], 3.0), 900.0))
    assert all(one.at_s % 3.0 == 0.0 and one.at_s > 0.0 for one in requests)
    sizes = list(Counter(one.at_s for one in requests).values())
    # Poisson counts of mean 60 in 299 periods.
    assert fmean(sizes) == pytest.approx(60.0, abs=3.3 * sqrt(60.0 / 299.0))


def test_synchronised_requests_come_at_the_minute() -> None:
    requests = list(until(batched(Random(5), [1.0, 1.0], 60.0), 600.0))
    assert {one.at_s for one in requests} == {60.0 * minute for minute in range(1, 10)}
    assert {one.source for one in requests} == {0, 1}


def test_a_seed_determines_a_stream() -> None:
    one, again, other = (list(islice(batched(Random(seed), [3.0], 2.0), 50)) for seed in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_demand_that_cannot_be_is_refused_at_once(rate: float) -> None:
    with pytest.raises(UsageError, match=r"demand of source 1 is (-1|nan|inf) requests/s"):
        poisson(Random(1), [1.0, rate])
    with pytest.raises(UsageError, match="demand of source 1"):
        batched(Random(1), [1.0, rate], 1.0)


def test_phases_and_periods_that_cannot_be_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="begins at -3 s"):
        varying(Random(1), [(-3.0, [1.0])])
    with pytest.raises(UsageError, match="period of 0 s"):
        batched(Random(1), [1.0], 0.0)


# -- Mooncake traces -----------------------------------------------------------------------------------------


def row(at_s: float, prompt_tokens: int, ids: tuple[int, ...], output_tokens: int = 50) -> Row:
    return Row(1, at_s, prompt_tokens, output_tokens, ids, "s")


def shared(one: Request, other: Request) -> int:
    """Tokens of the beginning that two prompts have in common, in blocks of 16."""
    count = 0
    for a, b in zip(one.block_hashes, other.block_hashes, strict=False):
        if a != b:
            break
        count += 16
    return count


def test_rows_share_in_the_engine_what_they_share_in_the_trace() -> None:
    first, second, third, other = of_rows(
        [
            row(0.0, 1600, (7, 8, 9, 10)),
            row(1.0, 1100, (7, 8, 11)),
            row(1.0, 1536, (7, 8, 9)),
            row(2.0, 600, (20, 21)),
        ],
        lambda row: 0,
    )
    assert [len(one.block_hashes) for one in (first, second, third, other)] == [100, 68, 96, 37]
    assert (shared(first, second), shared(first, third), shared(second, third)) == (1024, 1536, 1024)
    assert shared(first, other) == 0
    assert len(set(first.block_hashes)) == 100


def test_rows_are_as_a_replay_sends_them() -> None:
    rows = [row(0.0, 10, (1,), 300), row(30.0, 20, (2,), 5)]
    one, other = of_rows(rows, lambda row: int(row.timestamp_s > 1.0), speedup=10.0, max_output=100)
    assert (one.at_s, one.source, one.prompt_tokens, one.output_tokens, one.max_output_tokens) == (0.0, 0, 10, 100, 100)
    assert (other.at_s, other.source, other.prompt_tokens, other.output_tokens, other.max_output_tokens) == (
        3.0,
        1,
        20,
        5,
        5,
    )


def test_the_real_conversations_share_as_much_as_is_known_of_them() -> None:
    """36.6 % of its block ids were seen before, as the trace's own description says."""
    path = TRACES / "mooncake_conversation_trace.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here; DLBCTL_SHARED names the directory that holds traces/")
    seen: set[int] = set()
    again = total = 0
    for one in of_rows(read_trace(path).rows, lambda row: 0):
        # The first part of each whole block, as the engine would find it.
        firsts = set(one.block_hashes[::32])
        again += len(firsts & seen)
        total += len(firsts)
        seen |= firsts
    assert again / total == pytest.approx(0.366, abs=0.002)


# -- Azure traces --------------------------------------------------------------------------------------------

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:17:03.9799600,4808,10\n"


def azure(tmp_path: Path, text: str, speedup: float = 1.0) -> list[Request]:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return of_azure_csv(path, lambda line: line % 2, speedup=speedup)


def test_azure_rows_count_their_time_from_the_first(tmp_path: Path) -> None:
    text = HEADER + FIRST + "2023-11-16 18:17:04.0319600,3180,8\r\n" + "2023-11-16 18:18:04,1,1\n"
    requests = azure(tmp_path, "\ufeff" + text, speedup=2.0)
    assert [(one.prompt_tokens, one.output_tokens, one.source) for one in requests] == [
        (4808, 10, 0),
        (3180, 8, 1),
        (1, 1, 0),
    ]
    assert [one.at_s for one in requests] == pytest.approx([0.0, 0.026, 30.01002])


def test_azure_times_with_a_zone_may_be_without_a_fraction(tmp_path: Path) -> None:
    """As in the traces of 2024: a whole second has none."""
    text = HEADER + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
    assert [one.at_s for one in azure(tmp_path, text)] == pytest.approx([0.0, 0.99007])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ":1: no Azure trace: its first line is TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("timestamp,a,b\n", ":1: no Azure trace"),
        (HEADER, ": the trace is empty"),
        (HEADER + FIRST + "yesterday,5,5\n", ":3: cannot read 'yesterday,5,5'"),
        (HEADER + FIRST + "\n", ":3: cannot read ''"),
        (HEADER + FIRST + "2023-11-16 18:17:05,5\n", ":3: cannot read"),
        (HEADER + FIRST + "2023-11-16 18:17:05,5,many\n", ":3: cannot read"),
        (HEADER + "2023-11-16 18:17:05,0,5\n", ":2: a request has at least one token in"),
        (HEADER + "2023-11-16 18:17:05,5,-5\n", ":2: a request has at least one token in"),
        (HEADER + FIRST + FIRST + "2023-11-16 18:17:03.9,5,5\n", ":4: its time is before the one of the line above"),
        (HEADER + FIRST + "\udcff,1,1\n", ": cannot read the trace: "),
        (HEADER + FIRST + '"' + "x" * 200_000 + '",1,1\n', ": cannot read the trace: field larger"),
    ],
)
def test_a_bad_azure_file_is_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        azure(tmp_path, text)
    assert f"{tmp_path}/trace.csv{words}" in str(caught.value)


def test_an_azure_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.csv: cannot read the trace"):
        of_azure_csv(tmp_path / "nothing.csv", lambda line: 0)


def test_the_real_azure_trace_is_read_whole() -> None:
    """Its size, span and means, as its description says."""
    path = TRACES / "azure2023_code.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here; DLBCTL_SHARED names the directory that holds traces/")
    requests = of_azure_csv(path, lambda line: 0)
    assert len(requests) == 8819
    assert requests[-1].at_s == pytest.approx(3435.95, abs=0.01)
    assert fmean(one.prompt_tokens for one in requests) == pytest.approx(2048, abs=1)
    assert fmean(one.output_tokens for one in requests) == pytest.approx(28, abs=0.5)
