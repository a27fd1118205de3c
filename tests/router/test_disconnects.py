"""Clients that leave: the server is told at once, nothing stays counted, and nobody else notices."""

from __future__ import annotations

import asyncio
import gc

import pytest

from dlbctl.core.exchange import NEVER
from dlbctl.core.settings import Timeouts
from dlbctl.router.limits import HttpLimits

from .live import Chain, chain, client_of, leaf, on_loop, server, until
from .scripted import Connection, Held, Script, answering, chunk, refusing_port, serving, sized
from .wire import Client, chat, get, post

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"


class Watching:
    """A server that answers with the bytes given, then watches its connections end."""

    def __init__(self, begun: bytes = b"") -> None:
        self.begun = begun
        self.ended = 0

    async def script(self, connection: Connection) -> None:
        await connection.hear()
        await connection.send(self.begun)
        await connection.left()
        self.ended += 1


def leave(client: Client, how: str) -> None:
    match how:
        case "close":
            client.writer.close()
        case "reset":
            client.abort()
        case "half-close":
            client.half_close()


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("begun", [b"", STREAM_HEAD + chunk(EVENT), b"HTTP/1.1 200 OK\r\n\r\nhalf"])
@on_loop
async def test_a_client_that_leaves_is_no_longer_worked_for(how: str, begun: bytes) -> None:
    """Cases 2 and 35: before the head, in mid-stream, and of a call that does not stream."""
    watching = Watching(begun)
    async with chain(watching.script) as (engine, live, client):
        await client.send(chat())
        if begun:
            await client.head()
        await until(lambda: len(engine.heard) == 1)
        leave(client, how)
        await until(lambda: watching.ended == 1, "the server's socket is closed")
        await live.settled()
        assert not live.connections
        candidate = live.tier.endpoints["m"].candidates["s"]
        assert candidate.errors.read(live.router.clock()) == 0, "leaving is nobody's failure"


@on_loop
async def test_a_client_that_leaves_while_connecting_is_no_longer_counted() -> None:
    with refusing_port() as port:
        async with leaf([server("s", port)]) as live, client_of(live) as client:
            client.writer.write(chat())
            client.abort()
            await until(lambda: not live.connections)
            await live.settled()


@on_loop
async def test_pipelined_requests_of_a_client_that_left_are_not_begun() -> None:
    watching = Watching()
    async with chain(watching.script) as (engine, live, client):
        await client.send(chat() * 5)
        await until(lambda: len(engine.heard) == 1)
        client.abort()
        await until(lambda: watching.ended == 1)
        await live.settled()
        assert len(engine.heard) == 1


@on_loop
async def test_a_client_that_leaves_in_the_middle_of_its_request_costs_nothing() -> None:
    async with chain(Watching().script) as (engine, live, client):
        await client.send(chat()[:-3])
        await until(lambda: len(live.connections) == 1)
        await client.close()
        await until(lambda: not live.connections)
        await live.settled()
        assert engine.heard == []


# -- half-close ------------------------------------------------------------------------------------------


def gated(gate: asyncio.Event, answer: bytes) -> Script:
    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await gate.wait()
            await connection.send(answer)

    return script


@on_loop
async def test_a_half_closed_client_gets_its_answer_where_that_is_allowed() -> None:
    """Case 39, `half_close = "allow"`: `nc` and old clients send and shut down their side."""
    gate = asyncio.Event()
    async with chain(gated(gate, sized(b'{"late":1}')), half_close=True) as (engine, live, client):
        await client.send(chat())
        client.half_close()
        await until(lambda: len(engine.heard) == 1)
        gate.set()
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b'{"late":1}')
        assert await client.closed()
        await live.settled()


@on_loop
async def test_a_half_closed_client_gets_all_it_had_asked_for() -> None:
    gate = asyncio.Event()
    async with chain(gated(gate, sized(b"{}")), half_close=True) as (_, live, client):
        await client.send(chat() + get("/livez") + chat())
        client.half_close()
        gate.set()
        assert [(await client.answer()).body for _ in range(3)] == [b"{}", b"ok\n", b"{}"]
        assert await client.closed()
        await live.settled()


@on_loop
async def test_a_client_that_half_closes_in_mid_stream_gets_the_rest_and_the_end() -> None:
    gate = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD + chunk(EVENT))
        await gate.wait()
        await connection.send(chunk(EVENT) + b"0\r\n\r\n")
        await connection.left()

    async with chain(script, half_close=True) as (_, live, client):
        await client.send(chat())
        answer = await client.head()
        client.half_close()
        gate.set()
        answer.body = await client.rest()  # ends: the connection is not kept for a client that cannot ask again
        assert answer.body.endswith(b"0\r\n\r\n")
        assert answer.body.count(EVENT) == 2
        await live.settled()


@on_loop
async def test_a_half_closed_client_whose_request_is_not_whole_is_let_go() -> None:
    async with chain(Watching().script, half_close=True) as (_, live, client):
        await client.send(chat()[:-3])
        client.half_close()
        assert await client.closed()
        await until(lambda: not live.connections)


# -- many ------------------------------------------------------------------------------------------------


@on_loop
async def test_after_many_cancellations_the_next_request_succeeds() -> None:
    """Case 41: 20 clients that leave at every moment of a request's life, for a while."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await asyncio.sleep(0.002)
            await connection.send(STREAM_HEAD + chunk(EVENT))
            await asyncio.sleep(0.002)
            await connection.send(chunk(EVENT) + b"0\r\n\r\n")

    async with chain(script) as made:
        await asyncio.gather(*(impatient(made, number) for number in range(20)))
        await made.live.settled()
        for _ in range(12):
            answer = await made.client.ask(chat())
            assert (answer.status, answer.whole) == (200, True)
        await made.live.settled()
        pool = made.live.router.pool(made.engine.url)
        assert len(pool.open) == len(pool.idle), "no connection is kept that nobody uses"


async def impatient(made: Chain, number: int) -> None:
    for turn in range(15):
        client = await made.live.client()
        await client.send(chat() * (1 + turn % 3))
        await asyncio.sleep(0.001 * ((number + 3 * turn) % 13))
        leave(client, ("close", "reset")[turn % 2])


@on_loop
async def test_what_served_a_connection_is_freed_with_it_and_not_by_the_collector() -> None:
    """A parser refers to its connection and back; the collector, which runs seldom, found that too late."""
    held = Held(STREAM_HEAD + chunk(EVENT), b"0\r\n\r\n")
    gc.collect()
    gc.disable()
    try:
        before = alive()
        async with chain(held.script) as (_, live, _):
            for how in ("close", "reset", "half-close") * 5:
                async with client_of(live) as client:
                    await client.send(chat())
                    await client.reader.readuntil(EVENT)
                    leave(client, how)
                    await live.settled()
        assert alive() == before
    finally:
        gc.enable()


def alive() -> int:
    """Objects that serve one connection or request."""
    names = {"HttpRequestParser", "HttpResponseParser", "Upstream", "Relay", "Exchange"}
    return sum(type(thing).__name__ in names for thing in gc.get_objects())


# -- slow readers ----------------------------------------------------------------------------------------

MIB = 1024 * 1024


@on_loop
async def test_a_slow_reader_bounds_what_is_taken_from_the_server() -> None:
    """Case 38: what the router holds is what it took from the server and could not pass on."""
    size = 64 * MIB
    taken = 0

    async def script(connection: Connection) -> None:
        nonlocal taken
        await connection.hear()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        piece = b"x" * 65536
        while taken < size:
            await connection.send(piece)
            taken += len(piece)

    async with chain(script) as (_, live, client):
        await client.send(chat())
        await client.head()
        await steady(lambda: taken)
        # The kernel's own buffers, twice, and the router's: some megabytes whatever the size of the answer.
        assert taken < 24 * MIB
        assert held(live.connections) < MIB
        assert all(exchange.stalled_s < NEVER for exchange in live.tier.exchanges.values())  # no curve learns it
        answer = await client.reader.readexactly(size)
        assert len(answer) == size
        await live.settled()


def held(connections: set[object]) -> int:
    """Bytes that the router's client connections hold in their own buffers."""
    return sum(connection.transport.get_write_buffer_size() for connection in connections)  # type: ignore[attr-defined]


async def steady(value: object) -> None:
    """Wait until a number has stopped changing for a fifth of a second."""
    assert callable(value)
    seen = -1
    while seen != value():
        seen = value()
        await asyncio.sleep(0.2)


@on_loop
async def test_a_server_that_reads_slowly_is_sent_no_copy_of_a_large_request() -> None:
    size = 16 * MIB
    go = asyncio.Event()

    async def script(connection: Connection) -> None:
        await go.wait()
        heard = await connection.hear()
        await connection.send(sized(b"%d" % len(heard.body)))

    async with chain(script) as (engine, live, client):
        sending = asyncio.ensure_future(client.send(post(b'{"model":"m","p":"%b"}' % (b"x" * size))))
        await until(lambda: any(pooled.waiting for pooled in live.router.pool(engine.url).open))
        upstream = next(iter(live.router.pool(engine.url).open))
        assert upstream.transport.get_write_buffer_size() <= size + MIB
        async with client_of(live) as other:
            assert (await other.ask(get("/livez"))).status == 200
        go.set()
        await sending
        assert int((await client.answer()).body) > size
        await live.settled()


@on_loop
async def test_a_client_that_stops_reading_is_dropped_and_the_server_left() -> None:
    """A reader that never comes back must not hold a server's slot: the idle limit is for both sides."""
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD)
        try:
            while True:
                await connection.send(chunk(b"x" * 65536))
        finally:
            ended.set()

    async with chain(script, timeouts=Timeouts(idle_s=0.3)) as (_, live, client):
        await client.send(chat())
        await client.head()
        await ended.wait()
        await live.settled()
        candidate = live.tier.endpoints["m"].candidates["s"]
        assert candidate.errors.read(live.router.clock()) == 0, "the server did nothing wrong"


@on_loop
async def test_a_client_that_never_reads_its_answer_does_not_stay_for_ever() -> None:
    """The answer is complete and the server free; only bytes for a client that reads nothing are left."""
    stuck = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD)
        while not stuck.is_set():
            await connection.send(chunk(b"x" * 32768))
            await asyncio.sleep(0.001)
        await connection.send(b"0\r\n\r\n")
        await connection.left()

    async with chain(script, limits=HttpLimits(keep_alive_s=0.2)) as (_, live, client):
        await client.send(chat())
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: bool(held(live.connections)))
        stuck.set()
        await live.settled()
        await until(lambda: not live.connections)


@on_loop
async def test_a_client_that_reads_nothing_leaves_a_connection_to_the_server_that_others_can_use() -> None:
    """Its answers are small enough to be whole at once, though nothing may be read for it any more."""
    async with (
        serving(answering(sized(b"x" * 10_000))) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as slow,
    ):
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(chat())
        await until(lambda: bool(engine.heard))
        (connection,) = live.connections
        more = 1  # after its buffers are full
        while more or not connection.paused:
            more -= connection.paused
            asked = len(engine.heard) + 1
            await slow.send(chat())
            await until(lambda: len(engine.heard) == asked)  # noqa: B023
            await live.settled()
        async with client_of(live) as other:
            assert (await other.ask(chat())).status == 200
        assert len(engine.connections) == 1
