"""HTTP as clients cut it: every split of the bytes, pipelines, keep-alive, old versions and nonsense."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import uvloop

from dlbctl.engine.connection import MAX_HELD_BYTES, Connection, Exchange

if TYPE_CHECKING:
    from tests.engine.conftest import Live, Running


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Echo:
    """Answers with the request's method, path and body."""

    def handle(self, exchange: Exchange) -> None:
        exchange.reply(200, "text/plain", f"{exchange.method} {exchange.path} ".encode() + exchange.body)


class Silent:
    """Keeps exchanges for later."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)


def wired(handler: Echo | Silent) -> tuple[Connection, Wire]:
    wire = Wire()
    connection = Connection(handler, set())
    connection.connection_made(wire)
    return connection, wire


POST = b"POST /a?q=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;e=1\r\ncde\r\n0\r\n\r\n"


@pytest.mark.parametrize(("request_bytes", "body"), [(POST, b"POST /a hello"), (CHUNKED, b"POST /b abcde")])
def test_a_request_cut_at_any_byte_is_the_same_request(request_bytes: bytes, body: bytes) -> None:
    for cut in range(len(request_bytes) + 1):
        connection, wire = wired(Echo())
        for piece in (request_bytes[:cut], request_bytes[cut:]):
            connection.data_received(piece)
        assert wire.written.endswith(b"\r\n\r\n" + body)
        assert not wire.closed


def test_a_pipeline_is_answered_in_order_however_long() -> None:
    async def scenario() -> None:
        connection, wire = wired(Echo())
        connection.data_received(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(3000)))
        while wire.written.count(b"HTTP/1.1 200 OK") < 3000:
            await asyncio.sleep(0)
        bodies = [part.split(b"\r\n\r\n")[1] for part in wire.written.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"GET /%d " % n for n in range(3000)]

    uvloop.run(scenario())


def test_a_pipelined_request_waits_for_the_answer_before_it() -> None:
    async def scenario() -> None:
        handler = Silent()
        connection, wire = wired(handler)
        connection.data_received(POST + CHUNKED)
        (first,) = handler.exchanges
        first.reply(200, "text/plain", b"one")
        while len(handler.exchanges) < 2:
            await asyncio.sleep(0)
        handler.exchanges[1].reply(200, "text/plain", b"two")
        assert wire.written.index(b"one") < wire.written.index(b"two")

    uvloop.run(scenario())


def test_whoever_leaves_is_reported_once_and_a_late_answer_goes_nowhere() -> None:
    handler = Silent()
    connection, wire = wired(handler)
    connection.data_received(POST)
    (exchange,) = handler.exchanges
    left: list[bool] = []
    exchange.on_gone = lambda: left.append(True)
    connection.connection_lost(None)
    exchange.lose()
    exchange.reply(200, "text/plain", b"late")
    assert (left, wire.written) == ([True], b"")
    assert repr(exchange) == "<Exchange POST /a, over>"


def test_more_than_a_connection_may_hold_is_refused() -> None:
    connection, wire = wired(Silent())
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (2 * MAX_HELD_BYTES))
    piece = b"x" * (1 << 20)
    for _ in range(MAX_HELD_BYTES // len(piece)):
        assert not wire.closed
        connection.data_received(piece)
    assert wire.closed
    assert wire.written.startswith(b"HTTP/1.1 413 ")


def test_what_a_connection_holds_is_let_go_with_each_answer() -> None:
    connection, _ = wired(Echo())
    for _ in range(3):
        connection.data_received(POST)
        assert connection._held_bytes == 0


def test_nonsense_is_answered_400_and_closed() -> None:
    connection, wire = wired(Echo())
    connection.data_received(b"\x16\x03\x01 hello\r\n\r\n")
    assert wire.written.startswith(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n")
    assert wire.closed


def test_expect_100_continue_is_answered_before_the_body() -> None:
    connection, wire = wired(Echo())
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"ok")
    assert wire.written.endswith(b"POST / ok")


def test_http_1_0_streams_end_with_the_connection() -> None:
    handler = Silent()
    connection, wire = wired(handler)
    connection.data_received(b"GET / HTTP/1.0\r\n\r\n")
    (exchange,) = handler.exchanges
    exchange.start_stream("text/plain")
    exchange.send(b"one ")
    exchange.finish(b"two")
    head, body = wire.written.split(b"\r\n\r\n")
    assert (body, wire.closed) == (b"one two", True)
    assert b"transfer-encoding" not in head


def test_head_has_the_length_and_no_body() -> None:
    connection, wire = wired(Echo())
    connection.data_received(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert wire.written.endswith(b"content-length: 7\r\n\r\n")


def test_one_connection_serves_many_requests_byte_by_byte(running: Running) -> None:
    body = json.dumps({"prompt": "a b", "max_tokens": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def answer(reader: asyncio.StreamReader) -> bytes:
        received = await reader.readuntil(b"\r\n\r\n")
        length = int(received.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert b"connection: close" not in received
        return await reader.readexactly(length)

    async def scenario(live: Live) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        for _ in range(3):
            for byte in head + body:
                writer.write(bytes([byte]))
                await writer.drain()
            assert b'"text_completion"' in await answer(reader)
        writer.close()

    async def serve() -> None:
        async with running() as live:
            await scenario(live)

    uvloop.run(serve())
