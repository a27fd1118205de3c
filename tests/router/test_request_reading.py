"""How requests are read from a connection: pipelines, expectations, upgrades that are not made, slow senders."""

from __future__ import annotations

import asyncio
import time

import pytest

from dlbctl.router.downstream import PIPELINE_BYTES
from dlbctl.router.limits import HttpLimits

from .live import Chain, chain, client_of, on_loop, until
from .scripted import Connection, Script, answering, serving, sized
from .wire import Client, chat, get, post

OK = answering(sized(b"{}"))
BODY = b'{"model":"m","prompt":"hello"}'


def echoing(gate: asyncio.Event | None = None) -> Script:
    """Answers each request with its own body, once the gate is open."""

    async def script(connection: Connection) -> None:
        while True:
            heard = await connection.hear()
            if gate is not None:
                await gate.wait()
            await connection.send(sized(heard.body))

    return script


def numbered(number: int, size: int = 0) -> bytes:
    return b'{"model":"m","n":%d,"pad":"%b"}' % (number, b"x" * size)


@on_loop
async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with chain(echoing()) as (engine, live, client):
        bodies = [numbered(n) for n in range(50)]
        await client.send(b"".join(post(body) + get("/livez") for body in bodies))
        for body in bodies:
            assert (await client.answer()).body == body
            assert (await client.answer()).body == b"ok\n"
        assert [heard.body for heard in engine.heard] == bodies
        await live.settled()


@on_loop
async def test_a_thousand_waiting_requests_are_no_depth_of_calls() -> None:
    gate = asyncio.Event()
    async with chain(echoing(gate)) as (engine, live, client):
        await client.send(post(numbered(0)))
        await until(lambda: len(engine.heard) == 1)
        await client.send(get("/livez") * 1500)
        (connection,) = live.connections
        await until(lambda: len(connection._waiting) == 1500)
        gate.set()
        assert (await client.answer()).body == numbered(0)
        assert {(await client.answer()).body for _ in range(1500)} == {b"ok\n"}


@on_loop
async def test_pipelining_more_than_the_bound_while_busy_closes() -> None:
    gate = asyncio.Event()
    async with chain(echoing(gate)) as (engine, live, client):
        await client.send(post(numbered(0)))
        while not engine.heard:
            await asyncio.sleep(0)
        await client.send(post(numbered(1, PIPELINE_BYTES)))
        assert await client.closed()
        await live.settled()


@on_loop
async def test_the_bound_counts_what_waits_and_not_what_has_ever_been_pipelined() -> None:
    gate = asyncio.Event()
    async with chain(echoing(gate)) as made:
        for _ in range(3):
            await pipeline_while_busy(made, gate, PIPELINE_BYTES // 2)


async def pipeline_while_busy(made: Chain, gate: asyncio.Event, size: int) -> None:
    """Send a second request of some size while the first is being answered; both are answered in the end."""
    engine, live, client = made
    gate.clear()
    heard = len(engine.heard)
    await client.send(post(numbered(0)))
    await until(lambda: len(engine.heard) > heard)
    await client.send(post(numbered(1, size)))
    (connection,) = live.connections
    await until(lambda: len(connection._waiting) == 1)
    gate.set()
    assert [(await client.answer()).whole for _ in range(2)] == [True, True]


@on_loop
async def test_an_expectation_is_answered_before_the_body_comes() -> None:
    async with chain(echoing()) as (engine, _, client):
        head, _, _ = post(BODY, extra=b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        interim = await client.ask(head + b"\r\n\r\n")
        assert interim.status == 100
        assert engine.heard == []
        assert (await client.ask(BODY)).body == BODY
        assert engine.heard[0].get(b"expect") is None


@on_loop
async def test_a_pipelined_expectation_is_answered_when_its_turn_has_come() -> None:
    gate = asyncio.Event()
    async with chain(echoing(gate)) as (engine, _, client):
        head, _, _ = post(BODY, extra=b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        await client.send(post(numbered(0)) + head + b"\r\n\r\n")
        while not engine.heard:
            await asyncio.sleep(0)
        gate.set()
        assert (await client.answer()).body == numbered(0)
        assert (await client.answer()).status == 100
        assert (await client.ask(BODY)).body == BODY


@pytest.mark.parametrize("length", [b"Content-Length: %d", b"content-length:   %d  "])
@on_loop
async def test_a_body_under_an_upgrade_is_relayed_whole(length: bytes) -> None:
    """Java's clients ask for h2c with every POST; a parser that believes in the upgrade drops the body."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQC\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n%b\r\n%b\r\n" % (length % len(BODY), upgrade)
    async with chain(echoing()) as (engine, live, client):
        for _ in range(2):
            assert (await client.ask(head + BODY)).body == BODY
        await client.send(head)
        assert (await client.ask(BODY)).body == BODY
        await client.send(head + BODY + head + BODY + chat())
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]
        assert {heard.get(b"upgrade") for heard in engine.heard} == {None}
        await live.settled()


@on_loop
async def test_a_chunked_body_under_an_upgrade_is_relayed_whole() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    chunks = b"Transfer-Encoding: chunked\r\n\r\n4\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:4], len(BODY) - 4, BODY[4:])
    async with chain(echoing()) as (_, _, client):
        assert (await client.ask(head + chunks)).body == BODY
        assert (await client.ask(post(BODY))).body == BODY


@on_loop
async def test_thousands_of_pipelined_upgrades_are_no_depth_of_calls() -> None:
    ask = get("/livez", b"Connection: Upgrade\r\nUpgrade: x\r\n")
    async with chain(OK) as (_, _, client):
        await client.send(ask * 3000)
        for _ in range(3000):
            assert (await client.answer()).status == 200


@on_loop
async def test_a_byte_now_and_then_buys_no_time_for_the_head() -> None:
    """Case 40: the deadline is for the whole head; other clients do not notice."""
    limits = HttpLimits(header_timeout_s=0.4)
    async with chain(OK, limits=limits) as (_, live, slow):
        started_s = time.monotonic()
        await slow.send(b"GET /v1/models HTTP/1.1\r\nHost: ")
        dripping = asyncio.ensure_future(drip(slow))
        async with client_of(live) as other:
            assert (await other.ask(chat())).status == 200
        answer = await slow.answer()
        dripping.cancel()
        assert answer.status == 408
        assert 0.3 < time.monotonic() - started_s < 1.5
        assert await slow.closed()


async def drip(client: Client) -> None:
    while True:
        await client.send(b"a")
        await asyncio.sleep(0.05)


@on_loop
async def test_a_body_that_stops_coming_is_given_up() -> None:
    async with chain(OK, limits=HttpLimits(body_timeout_s=0.2)) as (engine, _, client):
        answer = await client.ask(post(BODY)[:-1])
        assert answer.status == 408
        assert await client.closed()
        assert engine.heard == []


@on_loop
async def test_a_body_that_keeps_coming_is_waited_for() -> None:
    async with chain(echoing(), limits=HttpLimits(body_timeout_s=0.3)) as (_, _, client):
        request = post(BODY)
        await client.send(request[:-10])
        for byte in request[-10:]:
            await asyncio.sleep(0.06)
            await client.send(bytes([byte]))
        assert (await client.answer()).body == BODY


@pytest.mark.parametrize("first", [b"", chat()])
@on_loop
async def test_a_connection_without_a_request_is_closed_after_a_while(first: bytes) -> None:
    limits = HttpLimits(header_timeout_s=0.2, keep_alive_s=0.2)
    async with chain(OK, limits=limits) as (_, _, client):
        if first:
            assert (await client.ask(first)).status == 200
        assert await client.closed()


@on_loop
async def test_a_connection_in_use_outlives_the_keep_alive_limit() -> None:
    gate = asyncio.Event()
    limits = HttpLimits(header_timeout_s=0.1, keep_alive_s=0.1, body_timeout_s=0.1)
    async with chain(echoing(gate), limits=limits) as (engine, _, client):
        answer = asyncio.ensure_future(client.ask(post(BODY)))
        while not engine.heard:
            await asyncio.sleep(0)
        await asyncio.sleep(0.4)  # longer than every limit there is for an idle connection
        gate.set()
        assert (await answer).body == BODY


@on_loop
async def test_many_connections_share_one_server() -> None:
    async with serving(echoing()) as engine, chain(echoing()) as (_, live, _):
        assert engine.heard == []
        clients = [await live.client() for _ in range(20)]
        bodies = [numbered(n) for n in range(20)]
        answers = await asyncio.gather(*(c.ask(post(body)) for c, body in zip(clients, bodies, strict=True)))
        assert [answer.body for answer in answers] == bodies
        for client in clients:
            client.abort()


@on_loop
async def test_the_rest_of_one_body_is_not_counted_as_the_next_head() -> None:
    limits = HttpLimits(header_bytes=1024)
    async with chain(echoing(), limits=limits) as (_, _, client):
        first, second = post(numbered(1, 8000)), post(numbered(2))
        await client.send(first + second[:40])
        assert (await client.answer()).body == numbered(1, 8000)
        await client.send(second[40:])
        assert (await client.answer()).body == numbered(2)
