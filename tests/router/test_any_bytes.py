"""However the bytes come, split anywhere or damaged anyhow: the same result, no fault, and nothing left counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.router.limits import HttpLimits
from dlbctl.router.upstream import HEAD_BYTES

from .memory import Bench, MemoryLoop, Reply, no_faults_of_our_own
from .scripted import chunk, chunked, sized
from .wire import Answer, chat, get, post

LIMITS = HttpLimits(header_bytes=2048, body_bytes=4096)
# Derandomised: a red run can be repeated. A hundred examples of a few milliseconds each.
many = settings(derandomize=True, deadline=None, max_examples=100)


@pytest.fixture(scope="module")
def loop() -> Iterator[MemoryLoop]:
    loop = MemoryLoop()
    yield loop
    loop.close()


def echo(head: bytes, body: bytes) -> Sequence[bytes]:
    method = head.split(b" ", 1)[0]
    return [sized(b"" if method == b"HEAD" else method + b"|" + body)]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces, cut at these places."""
    places = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def asked(loop: MemoryLoop, pieces: Sequence[bytes], reply: Reply = echo) -> bytes:
    """What a client gets that sends these pieces."""

    async def run() -> bytes:
        bench = Bench(loop, reply, LIMITS)
        await bench.feed(pieces)
        written = bench.client.written
        await bench.leave()
        return written

    with no_faults_of_our_own():
        return loop.run_until_complete(run())


def answered(loop: MemoryLoop, pieces: Sequence[bytes], request: bytes = chat()) -> list[Answer]:
    """What a client gets whose request is answered with these pieces; an empty one ends the connection."""

    async def run() -> list[Answer]:
        bench = Bench(loop, lambda *_: pieces, LIMITS)
        await bench.feed([request])
        await bench.leave()
        return await bench.answers()

    with no_faults_of_our_own():
        return loop.run_until_complete(run())


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n%bTransfer-Encoding: chunked\r\n\r\n"
BODY = b'{"model":"m"}'
REQUESTS = (
    chat(),
    chat("none"),
    post(b'{"model":"m","prompt":"\xf0\x9f\x98\x80"}', extra=UPGRADE),
    CHUNKED % b"" + chunk(BODY[:3]) + chunk(BODY[3:]) + b"0\r\nx-trailer: 1\r\n\r\n",
    CHUNKED % UPGRADE + chunk(BODY) + b"0\r\n\r\n",
    get("/livez"),
    get("/v1/files?a=b"),
    b"HEAD /v1/files HTTP/1.1\r\nHost: t\r\n\r\n",
    post(b"{broken"),
    b"DELETE http://t/v1/files/1 HTTP/1.1\r\nHost: t\r\nX-Empty:\r\n\r\n",
)
BAD = (
    b"nonsense\r\n\r\n",
    get("/livez", b"Host: u\r\n"),
    post(b"x" * 5000),
    get("/livez", b"X-A: %b\r\n" % (b"a" * 3000)),
    CHUNKED % b"" + b"zz\r\n",
    b"GET /livez HTTP/1.0\r\n\r\n",
)


def test_pipelined_requests_cut_in_two_anywhere_get_the_same_answers(loop: MemoryLoop) -> None:
    stream = b"".join(REQUESTS)
    whole = asked(loop, [stream])
    assert whole.count(b"HTTP/1.1 ") == len(REQUESTS)
    for place in range(1, len(stream)):
        assert asked(loop, cut(stream, [place])) == whole, place


def test_requests_a_byte_at_a_time_get_the_same_answers(loop: MemoryLoop) -> None:
    stream = b"".join(REQUESTS)
    assert asked(loop, [bytes([byte]) for byte in stream]) == asked(loop, [stream])


@many
@given(
    requests=st.lists(st.sampled_from(REQUESTS), max_size=6),
    bad=st.sampled_from((b"", *BAD)),
    places=st.lists(st.integers(0, 1 << 16), max_size=12),
)
def test_requests_in_any_pieces_get_the_same_answers(
    loop: MemoryLoop, requests: list[bytes], bad: bytes, places: list[int]
) -> None:
    stream = b"".join(requests) + bad
    assert asked(loop, cut(stream, places)) == asked(loop, [stream])


EVENT = b'data: {"choices":[{"text":"hello"}]}\n\n'
ANSWERS: tuple[tuple[bytes, bool], ...] = (  # and whether the connection then ends
    (sized(BODY), False),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + sized(BODY), False),
    (chunked(EVENT, EVENT[:7], EVENT[7:]), False),
    (chunked(EVENT, end=False) + b"0\r\nx-trailer: 1\r\n\r\n", False),
    (b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n" + EVENT * 3, True),
    (b"HTTP/1.0 200 OK\r\n\r\n" + EVENT, True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", False),
    (sized(b"", status=b"429 Slow Down", extra=b"retry-after: 1\r\n"), False),
    # Cut short:
    (sized(BODY)[:-4], True),
    (chunked(EVENT, EVENT, end=False), True),
)


def told(answers: list[Answer]) -> list[tuple[object, ...]]:
    return [(a.status, a.reason, a.fields, a.body, a.whole) for a in answers]


@pytest.mark.parametrize(("answer", "ends"), ANSWERS)
def test_an_answer_cut_in_two_anywhere_reads_the_same(loop: MemoryLoop, answer: bytes, ends: bool) -> None:
    end = [b""] if ends else []
    whole = told(answered(loop, [answer, *end]))
    assert len(whole) == 1
    for place in range(1, len(answer)):
        assert told(answered(loop, [*cut(answer, [place]), *end])) == whole, place


@many
@given(answer=st.sampled_from(ANSWERS), places=st.lists(st.integers(0, 1 << 16), max_size=12))
def test_an_answer_in_any_pieces_reads_the_same(
    loop: MemoryLoop, answer: tuple[bytes, bool], places: list[int]
) -> None:
    data, ends = answer
    end = [b""] if ends else []
    pieces = [piece for piece in cut(data, places) if piece]
    assert told(answered(loop, [*pieces, *end])) == told(answered(loop, [data, *end]))


def damaged(sound: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Sound bytes with a few edits, or any bytes at all."""
    edit = st.tuples(st.integers(0, 1 << 12), st.integers(0, 20), st.binary(max_size=8))

    def damage(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for place, taken, put in edits:
            at = place % (len(data) + 1)
            data = data[:at] + put + data[at + taken :]
        return data

    streams = st.lists(st.sampled_from(sound), min_size=1, max_size=3).map(b"".join)
    return st.one_of(st.builds(damage, streams, st.lists(edit, max_size=4)), st.binary(max_size=300))


@settings(many, max_examples=300)
@given(data=damaged((*REQUESTS, *BAD)), places=st.lists(st.integers(0, 1 << 16), max_size=6))
def test_no_bytes_of_a_client_do_harm(loop: MemoryLoop, data: bytes, places: list[int]) -> None:
    asked(loop, cut(data, places))


@settings(many, max_examples=300)
@given(
    data=damaged([answer for answer, _ in ANSWERS]),
    places=st.lists(st.integers(0, 1 << 16), max_size=6),
    ends=st.booleans(),
    request=st.sampled_from((chat(), chat() + chat(), REQUESTS[7], chat().replace(b"1.1", b"1.0", 1))),
)
def test_no_bytes_of_a_server_do_harm(
    loop: MemoryLoop, data: bytes, places: list[int], ends: bool, request: bytes
) -> None:
    end = [b""] if ends else []
    pieces = [piece for piece in cut(data, places) if piece]

    async def run() -> None:
        bench = Bench(loop, lambda *_: [*pieces, *end], LIMITS)
        await bench.feed([request])
        await bench.leave()

    with no_faults_of_our_own():
        loop.run_until_complete(run())


def test_each_answer_on_a_connection_has_the_whole_room_for_its_head(loop: MemoryLoop) -> None:
    """Its head comes in two reads, so that it cannot be told at once how much of them is head."""
    answer = sized(b"{}", extra=b"x-a: %b\r\n" % (b"a" * (HEAD_BYTES - 1000)))
    pieces = cut(answer, [HEAD_BYTES // 2])

    async def run() -> list[Answer]:
        bench = Bench(loop, lambda *_: pieces, LIMITS)
        await bench.feed([chat()] * 3)
        assert len(bench.router.pool("http://127.0.0.1:1").open) == 1
        await bench.leave()
        return await bench.answers()

    with no_faults_of_our_own():
        assert [found.status for found in loop.run_until_complete(run())] == [200] * 3
