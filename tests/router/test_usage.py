"""Token counts are found in the tail of any answer, and nothing that a model writes is taken for them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.events import Usage
from dlbctl.router.usage import TAIL_BYTES, Tail, find_usage

from .live import chain, on_loop
from .scripted import Connection, answering, chunk, chunked, sized
from .wire import chat

USAGE = b'"usage":{"prompt_tokens":12,"total_tokens":19,"completion_tokens":7}'
FOUND = Usage(prompt_tokens=12, completion_tokens=7)
LAST = b'data: {"id":"x","choices":[],%b}\n\ndata: [DONE]\n\n' % USAGE


def tail_of(pieces: list[bytes]) -> bytes:
    tail = Tail()
    for piece in pieces:
        tail.add(piece)
    return tail.read()


def event(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b'{"choices":[],%b}' % USAGE, FOUND),
        (b'{%b,"choices":[{"text":"short"}]}' % USAGE, FOUND),
        (b'{"usage": {\n  "completion_tokens": 7,\n  "prompt_tokens" : 12 } }', FOUND),
        (b'{"usage":{"input_tokens":12,"output_tokens":7}}', FOUND),
        (
            b'{"usage":{"prompt_tokens":12,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":8}}}',
            Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=8),
        ),
        (b'{"usage":{"prompt_tokens":12}}', Usage(prompt_tokens=12)),
        (event("hi") + LAST, FOUND),
        (b'data: {"usage":null}\n\n' + LAST, FOUND),
        (LAST + b'data: {"usage":null}\n\n', FOUND),
        (b'{"usage":{"prompt_tokens":12,"completion_tokens":7.0}}', FOUND),
        (b'{"usage":{"prompt_tokens":12,"completion_tokens":7', FOUND),
        (b'{"usage":{"prompt_tokens":null,"input_tokens":12,"completion_tokens":7}}', FOUND),
        (b'{"usage":{"prompt_tokens":-12}}', None),
        (b'{"usage":{"prompt_tokens":1e3}}', None),
        (b'{"usage":{"prompt_tokens"', None),
        (b'{"usage"', None),
        (b'{"usage":', None),
        (b"", None),
        (b'{"choices":[]}', None),
        (b'{"usage":null}', None),
        (b'{"usage":{}}', None),
        (event('"usage":{"prompt_tokens":99,"completion_tokens":99}'), None),
        (event("data: [DONE]"), None),
        (LAST + event('"usage":{"prompt_tokens":99}'), FOUND),
        (b'{"choices":[{"text":"\\"usage\\":{\\"prompt_tokens\\":99}"}],%b}' % USAGE, FOUND),
    ],
)
def test_counts_are_found_where_they_are(answer: bytes, usage: Usage | None) -> None:
    assert find_usage(answer) == usage


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    texts=st.lists(st.text(max_size=40) | st.sampled_from(("data: [DONE]\n\n", '"usage":{"prompt_tokens":9}'))),
    places=st.lists(st.integers(0, 1 << 14), max_size=20),
)
def test_whatever_the_model_wrote_and_however_it_was_split(texts: list[str], places: list[int]) -> None:
    data = b"".join(event(text) for text in texts) + LAST
    places = sorted({place % len(data) for place in places})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    assert find_usage(tail_of(pieces)) == FOUND


@settings(derandomize=True, deadline=None, max_examples=60)
@given(pieces=st.lists(st.binary(max_size=3000)))
def test_the_tail_is_the_end_and_bounded(pieces: list[bytes]) -> None:
    assert tail_of(pieces) == b"".join(pieces)[-TAIL_BYTES:]
    find_usage(tail_of(pieces))


@pytest.mark.parametrize("digits", [5000, 100_000])
def test_a_number_beyond_reason_is_no_fault(digits: int) -> None:
    assert find_usage(b'{"usage":{"prompt_tokens":%b}}' % (b"9" * digits)) is None


@on_loop
async def test_counts_are_learned_from_a_stream_split_anywhere() -> None:
    """Case 33: an event split over reads; text that looks like an end or like counts."""
    stream = event("data: [DONE]\n\n") + event('"usage":{"prompt_tokens":99}') + LAST

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(chunked(end=False))
        for start in range(0, len(stream), 7):
            await connection.send(chunk(stream[start : start + 7]))
        await connection.send(b"0\r\n\r\n")

    async with chain(script) as (_, live, client):
        before = live.tier.endpoints["m"].output_tokens.value
        answer = await client.ask(chat())
        assert (answer.body, answer.whole) == (stream, True)
        await live.settled()
        learned = live.tier.endpoints["m"].output_tokens.value
        assert learned == pytest.approx(before + 0.05 * (7 - before))


@on_loop
async def test_nothing_is_learned_from_an_error() -> None:
    async with chain(answering(sized(b"{%b}" % USAGE, status=b"400 Bad Request"))) as (_, live, client):
        before = live.tier.endpoints["m"].output_tokens.value
        assert (await client.ask(chat())).status == 400
        await live.settled()
        assert live.tier.endpoints["m"].output_tokens.value == before
