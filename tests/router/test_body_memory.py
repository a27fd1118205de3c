"""The bodies of all requests together are bounded, and what is counted for each is given back on every path."""

from __future__ import annotations

import asyncio
import json

import pytest

from dlbctl.router.limits import HttpLimits

from .live import chain, client_of, leaf, on_loop, server, until
from .scripted import Connection, answering, refusing_port, serving, sized
from .wire import chat, get, post

LIMITS = HttpLimits(body_bytes=10_000, total_body_bytes=10_000, replay_bytes=1000)


def body(size: int, model: str = "m") -> bytes:
    return b'{"model":"%b"}'.ljust(size + 1) % model.encode()


async def unanswered(connection: Connection) -> None:
    """Reads its request and says nothing."""
    await connection.hear()
    await connection.left()


@on_loop
async def test_a_request_that_does_not_fit_beside_the_others_is_503_until_one_has_ended() -> None:
    async with chain(unanswered, limits=LIMITS) as (engine, live, client):
        async with client_of(live) as first:
            await first.send(post(body(6000)))
            await until(lambda: len(engine.heard) == 1)
            assert live.router.body_bytes == 6000
            answer = await client.ask(post(body(4001)))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "overloaded")
            assert (answer.get(b"retry-after"), answer.get(b"connection")) == (b"1", b"close")
            assert await client.closed()
            assert live.router.body_bytes == 6000
            async with client_of(live) as second:
                await second.send(post(body(4000)))
                await until(lambda: len(engine.heard) == 2)
        await live.settled()


@on_loop
async def test_a_body_counts_as_it_arrives_and_no_longer_when_its_client_leaves() -> None:
    async with chain(answering(sized(b"{}")), limits=LIMITS) as (_, live, client):
        whole = post(body(9000))
        await client.send(whole[:-1000])
        await until(lambda: live.router.body_bytes == 8000)
        async with client_of(live) as other:
            assert (await other.ask(post(body(2500)))).status == 503
            assert (await other.closed(), live.router.body_bytes) == (True, 8000)
        client.abort()
        await until(lambda: live.router.body_bytes == 0)


@pytest.mark.parametrize("size", [500, 5000])  # kept for a retry, and too large for it
@on_loop
async def test_a_body_counts_until_its_answer_begins(size: int) -> None:
    heard, gate = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        heard.set()
        await gate.wait()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{")
        await connection.left()

    async with chain(script, limits=LIMITS) as (_, live, client):
        await client.send(post(body(size)))
        await heard.wait()
        assert live.router.body_bytes == size
        gate.set()
        await until(lambda: live.router.body_bytes == 0)
        assert live.tier.exchanges, "though it has not ended"


@on_loop
async def test_requests_that_wait_for_their_turn_count_and_go_with_the_connection() -> None:
    async with chain(unanswered, limits=LIMITS) as (_, live, client):
        await client.send(post(body(1000)) * 3 + post(body(1000))[:-500])
        await until(lambda: live.router.body_bytes == 3500)
        client.abort()
        await live.settled()


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(body(5000, "nobody")),
        post(b"{".ljust(5000)),
        get("/livez", b"Content-Length: 5000\r\n") + b" " * 5000,
        post(body(5000), "/nowhere"),
        post(body(5000), "/v1/./files"),
        post(body(5000)),
        chat() + post(body(5000)),
        post(body(5000)) + b"nonsense\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + b" " * 5000 + b"\r\nzz\r\n",
        b"POST /v1/x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n"
        + b" " * 5000
        + b"\r\n2710\r\n "
        + b" " * 9999,
        b"POST /v1/x HTTP/1.1\r\nHost: t\r\nContent-Length: 5000\r\n\r\n" + b" " * 4000,  # and no more of it in time
    ],
)
@on_loop
async def test_a_request_that_fails_leaves_nothing_counted(request_bytes: bytes) -> None:
    limits = HttpLimits(body_bytes=10_000, total_body_bytes=10_000, body_timeout_s=0.2)
    with refusing_port() as dead:
        async with leaf([server("s", dead)], limits=limits) as live, client_of(live) as client:
            assert (await client.ask(request_bytes)).status in {200, 400, 404, 408, 413, 502, 503}
            await until(lambda: live.router.body_bytes == 0)
            await live.settled()


@on_loop
async def test_a_cut_answer_leaves_nothing_counted_of_the_requests_behind_it() -> None:
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(cut)

    async with serving(script) as engine, leaf([server("s", engine.port)]) as live, client_of(live) as client:
        await client.send(post(body(500)) * 3)
        assert (await client.answer()).whole is False
        await until(lambda: live.router.body_bytes == 0)
