"""Reading traces: what is a row, what is left out and why, what is refused."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.errors import ConfigError
from dlbctl.replay.selection import Selection, select
from dlbctl.replay.trace import Trace, parse_trace, read_trace, session_key

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "examples" / "traces"


def line(timestamp: object = 0, tokens: object = 600, ids: object = (0, 1), **more: object) -> bytes:
    row = {"timestamp": timestamp, "input_length": tokens, "output_length": 20, "hash_ids": ids}
    return json.dumps(row | more).encode() + b"\n"


def parse(*lines: bytes) -> Trace:
    return parse_trace(lines, name="t.jsonl")


def test_a_row_carries_its_line_seconds_and_blocks() -> None:
    trace = parse(line(0), line(1500, model="a", session_id=7))
    row = trace.rows[1]
    assert (row.line, row.timestamp_s, row.input_tokens, row.output_tokens) == (2, 1.5, 600, 20)
    assert (row.block_ids, row.model, row.session) == ((0, 1), "a", session_key((), 7))


def test_time_counts_from_the_first_row_so_that_a_cut_out_of_a_trace_starts_at_once() -> None:
    assert [row.timestamp_s for row in parse(line(90_000), line(90_250)).rows] == [0.0, 0.25]


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (b"{oops\n", "not-json", "not JSON"),
        (b"\xff\xfe\n", "not-json", "not JSON"),
        (b"[1, 2]\n", "bad-fields", "object"),
        (b'{"timestamp": 5}\n', "bad-fields", "input_length"),
        (line(5, tokens=0, ids=[]), "bad-fields", "input_length"),
        (line(5, tokens=True), "bad-fields", "input_length"),
        (line("5"), "bad-fields", "timestamp"),
        (line(-5), "negative-timestamp", "-5"),
        (line(2), "decreasing-timestamp", "2 ms after 3 ms"),
        (line(5, tokens=1024, ids=[0, 1, 2]), "hash-ids-mismatch", "3 hash_ids for 1024 tokens, not 2"),
        (line(5, tokens=513, ids=[0]), "hash-ids-mismatch", "1 hash_ids for 513 tokens, not 2"),
    ],
)
def test_a_bad_row_among_good_ones_is_left_out_with_its_line(bad: bytes, reason: str, detail: str) -> None:
    trace = parse(line(3), bad, line(9))
    assert [row.line for row in trace.rows] == [1, 3]
    assert trace.left_out.counts == {reason: 1}
    (named,) = trace.left_out.examples[reason]
    assert named.startswith("line 2: ")
    assert detail in named


def test_after_a_decreasing_row_the_order_is_that_of_the_rows_kept() -> None:
    trace = parse(line(10), line(4), line(9), line(10), line(11), line(12))
    assert [row.line for row in trace.rows] == [1, 4, 5, 6]
    assert trace.left_out.counts == {"decreasing-timestamp": 2}


def test_only_the_first_few_lines_of_a_reason_are_named() -> None:
    trace = parse(*[line(0)] * 20, *[b"{\n"] * 9)
    assert trace.left_out.counts == {"not-json": 9}
    assert len(trace.left_out.examples["not-json"]) == 5


def test_blank_lines_a_byte_order_mark_and_cr_lf_are_no_rows_and_no_faults() -> None:
    trace = parse(b"\xef\xbb\xbf" + line(0), b"\n", b"  \r\n", line(1).replace(b"\n", b"\r\n"))
    assert (trace.total, [row.line for row in trace.rows], trace.left_out.counts) == (2, [1, 4], {})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t.jsonl:1: the trace is empty"),
        ([b"\n", b"\n"], "t.jsonl:1: the trace is empty"),
        ([b"TIMESTAMP,ContextTokens\r\n", line(0), line(1)], "t.jsonl:1: not a trace"),
        ([b"{}\n"], "1 of 1 rows are unusable, first line 1"),
        ([line(0), b"{\n", b"{\n"], "2 of 3 rows are unusable, first line 2"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name_and_line(lines: list[bytes], message: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.jsonl") as caught:
        parse(*lines)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_path_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_trace(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message


JSON_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
ROWS = st.fixed_dictionaries(
    {},
    optional={
        key: st.integers(-(10**30), 10**30) | JSON_VALUES
        for key in ("timestamp", "input_length", "output_length", "session_id", "model")
    }
    | {"hash_ids": st.lists(st.integers(-(2**70), 2**70), max_size=3) | JSON_VALUES},
)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=60) | ROWS.map(lambda row: json.dumps(row).encode()) | st.just(line(5))))
def test_any_bytes_are_rows_left_out_rows_or_a_refusal_and_the_counts_add_up(lines: list[bytes]) -> None:
    try:
        trace = parse(*lines)
    except ConfigError:
        return
    assert len(trace.rows) + trace.left_out.total == trace.total
    instants = [row.timestamp_s for row in trace.rows]
    assert instants == sorted(instants)


def test_sessions_are_the_chain_to_the_second_block_and_their_names_never_change() -> None:
    assert session_key((0, 1, 2)) == session_key((0, 1, 9)) == "d2134e49b9d1800b"
    assert len({session_key((0, 1)), session_key((0, 2)), session_key((0,)), session_key((0, 1), "0,1")}) == 4


def test_a_selection_counts_every_row_it_leaves_out() -> None:
    trace = parse(*(line(second * 1000, tokens=100 * (second + 1), ids=[0]) for second in range(5)), b"{\n")
    kept = select(trace, Selection(start_s=1.0, end_s=4.0, limit=1, max_input_tokens=300))
    assert [(row.line, row.timestamp_s) for row in kept] == [(2, 0.0)]
    assert trace.left_out.counts == {
        "not-json": 1,
        "before-start": 1,
        "over-limit": 1,
        "over-max-input": 1,
        "after-end": 1,
    }
    assert len(kept) + trace.left_out.total == trace.total


def test_the_example_traces_are_what_their_script_writes(tmp_path: Path) -> None:
    script = runpy.run_path(str(TRACES / "make_sample.py"))
    for name, options in script["TRACES"].items():
        script["write"](tmp_path / name, **options)
        assert (tmp_path / name).read_bytes() == (TRACES / name).read_bytes()


def test_the_sample_ramps_and_shares_prefixes_of_several_system_prompts() -> None:
    trace = read_trace(TRACES / "sample.jsonl")
    assert (len(trace.rows), trace.left_out.total) == (747, 0)
    per_third = [sum(1 for row in trace.rows if 20 * k <= row.timestamp_s < 20 * (k + 1)) for k in range(3)]
    assert per_third[0] * 3 < per_third[2]
    first_blocks = [row.block_ids[0] for row in trace.rows]
    assert max(map(first_blocks.count, set(first_blocks))) < len(trace.rows) / 3
    assert len({row.session for row in trace.rows}) < len(trace.rows) / 2


def test_the_real_mooncake_trace_has_a_thousand_good_rows() -> None:
    shared = Path(os.environ.get("DLBCTL_SHARED", ROOT.parent / "shared"))
    path = shared / "traces" / "mooncake_conversation_head1000.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here; DLBCTL_SHARED names the directory that holds traces/")
    trace = read_trace(path)
    assert (len(trace.rows), trace.left_out.counts) == (1000, {})
