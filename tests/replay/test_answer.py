"""What an answer was, out of the bytes and instants a connection reports; no sockets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.replay.answer import Answer
from dlbctl.replay.sse import SseSplitter

STREAM = {b"content-type": b"text/event-stream; charset=utf-8"}
JSON = {b"content-type": b"application/json"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
DONE = b"data: [DONE]\n\n"


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def text(content: str) -> bytes:
    return event({"choices": [{"delta": {"content": content}}]})


def streamed(*pieces: bytes) -> Answer:
    """A 200 stream whose pieces come a second apart and whose body ends well."""
    answer = Answer(stream=True)
    answer.begin(200, STREAM)
    for second, piece in enumerate(pieces):
        answer.receive(piece, float(second))
    answer.complete(float(len(pieces)))
    return answer


def single(body: bytes, status: int = 200, *, stream: bool = False) -> Answer:
    answer = Answer(stream=stream)
    answer.begin(status, JSON)
    answer.receive(body, 1.0)
    answer.complete(2.0)
    return answer


@settings(derandomize=True, deadline=None)
@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), max_size=12),
        max_size=5,
    ),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_events_are_found_wherever_the_bytes_are_cut(texts: list[str], end: bytes, data: st.DataObject) -> None:
    wanted = [text.encode() for text in texts]
    stream = b": a comment" + end + end
    stream += b"".join(b"event: x" + end + b"data: " + payload + end + end for payload in wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    splitter, found = SseSplitter(), []
    for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[begin:stop])
    assert found + splitter.close() == wanted


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\r") == []
    assert splitter.feed(b"\ndata: b\r\n\r") == []
    assert splitter.feed(b"\n") == [b"a\nb"]


def test_the_data_lines_of_one_event_are_joined() -> None:
    assert SseSplitter().feed(b"data:a\ndata:  b\nid: 3\n\n") == [b"a\n b"]


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_a_stream_cut_anywhere_gives_the_same_answer(data: st.DataObject) -> None:
    stream = text("data: [DONE]\n\n") + text("é😀") + event({"choices": [], "usage": USAGE}) + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    answer = streamed(*pieces)
    assert (answer.ok, answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (
        True,
        9,
        2,
        4,
    )
    assert len(answer.gaps_s) == 1


def test_the_first_token_is_the_first_text_not_the_first_byte() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None})
    answer = streamed(role, text("a"), text("b"), text("c"), DONE)
    assert (answer.first_byte_s, answer.first_token_s, answer.end_s) == (0.0, 1.0, 5.0)
    assert answer.gaps_s == [1.0, 1.0]


def test_completions_text_and_reasoning_are_tokens_too() -> None:
    for choice in ({"text": "a"}, {"delta": {"reasoning_content": "a"}}, {"delta": {"reasoning": "a"}}):
        assert streamed(event({"choices": [choice]}), DONE).first_token_s == 0.0


def test_a_text_that_says_done_ends_nothing() -> None:
    answer = streamed(text("data: [DONE]"), text("\n\ndata: [DONE]\n\n"), text("more"))
    assert answer.failure == "truncated"
    assert answer.last_token_s == 2.0


def test_after_done_nothing_counts() -> None:
    assert streamed(text("a"), DONE, text("b")).gaps_s == []


def test_a_final_done_without_its_blank_line_is_an_end() -> None:
    assert streamed(text("a"), b"data: [DONE]").ok


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([text("a")], "truncated"),
        ([text("a"), b"data: [DON"], "bad-stream"),
        ([b"data: {oops\n\n", DONE], "bad-stream"),
        ([b"data: \xff\n\n", DONE], "bad-stream"),
        ([event({"error": {"message": "no more memory"}}), DONE], "stream-error"),
        ([], "truncated"),
    ],
)
def test_a_stream_that_is_not_whole_is_a_failure(pieces: list[bytes], reason: str) -> None:
    answer = streamed(*pieces)
    assert not answer.ok
    assert answer.failure == reason


def test_a_document_gives_its_usage_and_no_time_to_first_token() -> None:
    answer = single(json.dumps({"choices": [{"message": {"content": "x"}}], "usage": USAGE}).encode())
    assert (answer.ok, answer.completion_tokens, answer.first_token_s) == (True, 2, None)


@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        (single(b'{"choices": ['), "bad-json", ""),
        (single(b"{}", stream=True), "not-a-stream", ""),
        (single(b'{"error": {"message": "queue full"}}', 503, stream=True), "http-503", "queue full"),
        (single(b'{"error": "no"}', 404), "http-404", "no"),
        (single(b"<html>", 502), "http-502", "<html>"),
    ],
)
def test_any_other_answer_is_a_failure_that_says_why(answer: Answer, reason: str, detail: str) -> None:
    assert answer.failure == reason
    assert detail in answer.detail


def test_the_first_failure_stands_and_a_restart_keeps_the_first_send() -> None:
    answer = Answer(stream=True)
    answer.sent_s = 1.0
    answer.fail("disconnected", 2.0)
    answer.fail("timeout", 3.0)
    assert answer.failure == "disconnected"
    answer.restart()
    assert repr(answer) == "<Answer pending from None>"
    assert answer.sent_s == 1.0
