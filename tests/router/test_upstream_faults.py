"""Servers that refuse, close, die and babble: what the client sees, who is tried next, and what is counted."""

from __future__ import annotations

import asyncio
import json

import pytest

from dlbctl.router.limits import HttpLimits
from dlbctl.router.upstream import HEAD_BYTES, HEAD_FIELDS

from .live import Live, chain, client_of, leaf, on_loop, server, until
from .scripted import Connection, Script, answering, chunk, chunked, once, refusing_port, serving, sized
from .wire import Answer, chat, get, post

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[]}\n\n'
OLD = b"POST /v1/completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n" + b'{"model":"m"}'


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["code"]


def dying(answer: bytes, *, reset: bool = False) -> Script:
    """Answers in part, then closes or resets."""

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(answer)
        if reset:
            connection.reset()

    return script


def totals(live: Live) -> tuple[float, float]:
    """Decayed requests and errors of server `s`, as counted now."""
    candidate = live.tier.endpoints["m"].candidates["s"]
    now_s = live.router.clock()
    return round(candidate.requests.read(now_s)), round(candidate.errors.read(now_s))


@pytest.mark.parametrize("reset", [False, True])
@on_loop
async def test_a_chunked_stream_that_dies_has_no_last_chunk(reset: bool) -> None:
    async with chain(dying(STREAM_HEAD + chunk(EVENT), reset=reset)) as (_, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.whole) == (200, False)
        assert reset or answer.body == EVENT
        await live.settled()
        assert totals(live) == (1, 1)


@pytest.mark.parametrize("reset", [False, True])
@on_loop
async def test_a_sized_answer_that_dies_stays_short(reset: bool) -> None:
    async with chain(dying(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", reset=reset)) as (_, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.whole) == (200, False)
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_an_answer_without_framing_that_dies_is_reset_for_a_client_of_http_1_0() -> None:
    """Its end is the connection's end, so a clean end would make half an answer look whole."""
    async with chain(dying(STREAM_HEAD + chunk(EVENT))) as (_, live, client):
        await client.send(OLD)
        assert (await client.head()).status == 200
        with pytest.raises(ConnectionResetError):
            await client.rest()
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_an_answer_that_ends_with_its_connection_and_is_reset_has_no_last_chunk() -> None:
    async with chain(dying(b"HTTP/1.1 200 OK\r\n\r\nhalf", reset=True)) as (_, live, client):
        try:
            answer = await client.ask(chat())
        except asyncio.IncompleteReadError:  # the reset overtook the head
            return
        assert answer.whole is False or answer.status == 502
        await live.settled()


@on_loop
async def test_an_error_of_the_server_to_a_stream_keeps_its_status_body_and_framing() -> None:
    """Case 34."""
    body = b'{"object":"error","message":"too long","code":400}'
    async with chain(answering(sized(body, status=b"400 Bad Request"))) as (engine, live, client):
        for _ in range(2):
            answer = await client.ask(post(b'{"model":"m","stream":true}'))
            assert (answer.status, answer.body, answer.whole) == (400, body, True)
            assert answer.get(b"content-length") == b"%d" % len(body)
        assert len(engine.connections) == 1
        await live.settled()
        assert totals(live) == (2, 0)  # a client's mistake is no failure of the server


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"500 Internal Server Error", b"503 Service Unavailable"])
@on_loop
async def test_an_error_of_the_server_reaches_the_client_as_it_is(status: bytes) -> None:
    async with chain(answering(chunked(b"whole ", b"body", status=status))) as (_, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.body, answer.whole) == (int(status[:3]), b"whole body", True)
        await live.settled()
        assert totals(live) == (1, 1)  # a 429 is no ill health, but a request that got nothing


@pytest.mark.parametrize(
    "garbage",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"\x00" * 1000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n" + b"x-a: 1\r\n" * HEAD_FIELDS + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: %b\r\n\r\n{}" % (b"a" * HEAD_BYTES),
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: " + b"a" * (HEAD_BYTES + 1),  # and no end of it
        b"HTTP/1.1 200 " + b"a" * (HEAD_BYTES + 1),
        b"HTTP/1.1 200 %b\r\ncontent-length: 2\r\n\r\n{}" % (b"a" * (HEAD_BYTES + 1)),
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 2000,
    ],
)
@on_loop
async def test_an_answer_that_is_not_http_is_a_502(garbage: bytes) -> None:
    async with chain(answering(garbage)) as (engine, live, client):
        assert code_of(await client.ask(chat())) == (502, "upstream_protocol_error")
        await until(lambda: not live.router.pool(engine.url).open)
        await live.settled()
        assert totals(live) == (1, 1)
        assert (await client.ask(get("/livez"))).status == 200


@on_loop
async def test_a_head_within_its_bounds_passes_however_much_of_the_body_comes_with_it() -> None:
    body = b"a" * (2 * HEAD_BYTES)
    for extra in (b"x-a: 1\r\n" * (HEAD_FIELDS - 2), b"x-a: %b\r\n" % (b"a" * (HEAD_BYTES - 200))):
        async with chain(answering(sized(body, extra=extra))) as (_, live, client):
            for _ in range(3):  # each answer has the whole room
                answer = await client.ask(chat())
                assert (answer.status, answer.body) == (200, body)
            await live.settled()


@on_loop
async def test_a_bad_chunk_in_mid_stream_cuts_the_stream() -> None:
    async with chain(answering(STREAM_HEAD + chunk(EVENT) + b"zz\r\n")) as (engine, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.whole) == (200, False)
        await until(lambda: not live.router.pool(engine.url).open)
        await live.settled()


@pytest.mark.parametrize("extra", [b"more than was said", sized(b'{"second":1}')])
@on_loop
async def test_what_follows_an_answer_unasked_reaches_nobody(extra: bytes) -> None:
    async with chain(answering(sized(b"{}") + extra)) as (engine, live, client):
        for _ in range(3):
            answer = await client.ask(chat())
            assert (answer.status, answer.body) == (200, b"{}")
        assert len(engine.connections) == 3, "a connection out of step is not used again"
        await live.settled()
        assert totals(live) == (3, 0)


@on_loop
async def test_what_a_server_sends_while_idle_ends_the_connection() -> None:
    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(sized(b"{}"))
        await go.wait()
        await connection.send(sized(b'{"forged":1}'))
        await connection.left()

    go = asyncio.Event()
    async with chain(script) as (engine, live, client):
        assert (await client.ask(chat())).body == b"{}"
        go.set()
        await until(lambda: engine.connections[0].gone)
        await until(lambda: not live.router.pool(engine.url).open)
        assert (await client.ask(chat())).body == b"{}"


# -- connections that are gone ---------------------------------------------------------------------------


@on_loop
async def test_a_pooled_connection_that_was_closed_meanwhile_costs_nothing() -> None:
    """Case 25, the ordinary way: the close is known before the next request comes."""
    async with chain(once(sized(b"{}"))) as (engine, live, client):
        for _ in range(3):
            assert (await client.ask(chat())).status == 200
            await until(lambda: not live.router.pool(engine.url).idle)
        await live.settled()
        assert totals(live) == (3, 0)


def closing_when_used_again(fresh: Script) -> Script:
    """The first connection answers once, then closes when the next request is there; later ones follow `fresh`."""

    async def script(connection: Connection) -> None:
        if len(connection.server.connections) > 1:
            await fresh(connection)
            return
        await connection.hear()
        await connection.send(sized(b"{}"))
        await connection.reader.read(1)  # the race: it is already closing as the request comes
        connection.reset()

    return script


BODY = b'{"model":"m","prompt":"%b"}' % (b"x" * 100_000)


@on_loop
async def test_a_request_that_meets_a_closing_connection_is_sent_again_whole() -> None:
    async with chain(closing_when_used_again(answering(sized(b'{"again":1}')))) as (engine, live, client):
        assert (await client.ask(chat())).status == 200
        answer = await client.ask(post(BODY))
        assert (answer.status, answer.body) == (200, b'{"again":1}')
        assert len(engine.connections) == 2
        assert engine.heard[-1].body == BODY
        await live.settled()
        assert totals(live) == (2, 0)


@on_loop
async def test_a_request_too_large_to_be_kept_does_not_meet_a_closing_connection() -> None:
    """It could not be sent again, so it gets a connection of its own; nor is it kept once it is written."""
    limits = HttpLimits(replay_bytes=1000)
    script = closing_when_used_again(answering(sized(b'{"again":1}')))
    async with chain(script, limits=limits) as (engine, live, client):
        assert (await client.ask(chat())).status == 200
        answer = await client.ask(post(BODY))
        assert (answer.status, answer.body) == (200, b'{"again":1}')
        assert engine.heard[-1].body == BODY
        await live.settled()


@pytest.mark.parametrize("replay_bytes", [1000, 1_000_000])
@on_loop
async def test_a_body_is_kept_no_longer_than_it_may_be_sent_again(replay_bytes: int) -> None:
    """Not while written and too large to be kept; not once the answer has begun, which is minutes before its end."""
    gate = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await gate.wait()
        await connection.send(STREAM_HEAD)
        await connection.left()

    async with chain(script, limits=HttpLimits(replay_bytes=replay_bytes)) as (engine, live, client):
        await client.send(post(BODY))
        await until(lambda: len(engine.heard) == 1)
        (connection,) = live.connections
        kept = len(connection.responder._request.body)
        assert kept == (len(BODY) if replay_bytes > len(BODY) else 0)
        gate.set()
        assert (await client.head()).status == 200
        assert connection.responder._request.body == b""


async def close_at_once(connection: Connection) -> None:
    await connection.hear()


@on_loop
async def test_it_is_sent_again_once_and_not_for_ever() -> None:
    async with chain(closing_when_used_again(close_at_once)) as (engine, live, client):
        assert (await client.ask(chat())).status == 200
        assert code_of(await client.ask(chat())) == (502, "upstream_closed")
        assert len(engine.connections) == 2
        await live.settled()
        assert totals(live) == (2, 1)


@on_loop
async def test_a_request_whose_answer_had_begun_is_not_sent_again() -> None:
    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(sized(b"{}"))
        await connection.hear()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-le")

    async with chain(script) as (engine, live, client):
        assert (await client.ask(chat())).status == 200
        assert code_of(await client.ask(chat())) == (502, "upstream_closed")
        assert len(engine.heard) == 2
        await live.settled()


@on_loop
async def test_a_new_connection_that_closes_without_an_answer_is_a_502() -> None:
    async with chain(close_at_once) as (engine, live, client):
        assert code_of(await client.ask(chat())) == (502, "upstream_closed")
        assert len(engine.heard) == 1, "it may have acted on the request, so it is not sent again"
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_a_refused_request_goes_whole_to_another_server() -> None:
    """Case 27, and case 5: one count up and one down wherever it was."""
    with refusing_port() as dead:
        async with serving(answering(sized(b"{}"))) as engine:
            for _ in range(4):  # whichever is chosen first
                async with (
                    leaf([server("dead", dead), server("alive", engine.port)]) as live,
                    client_of(live) as client,
                ):
                    answer = await client.ask(post(BODY))
                    assert (answer.status, answer.get(b"x-dlb-server")) == (200, b"alive")
                    assert engine.heard[-1].body == BODY
                    await live.settled()
                    # Once it has refused it is not asked again.
                    assert [(await client.ask(chat())).status for _ in range(8)] == [200] * 8
                    await live.settled()


@on_loop
async def test_a_refusal_everywhere_is_a_502() -> None:
    with refusing_port() as one, refusing_port() as two:
        async with leaf([server("a", one), server("b", two)]) as live, client_of(live) as client:
            assert code_of(await client.ask(chat())) == (502, "upstream_unreachable")
            await live.settled()
            unready = await client.ask(get("/readyz"))
            assert unready.status == 503
            assert (await client.ask(get("/livez"))).status == 200
            answer = await client.ask(chat())
            assert code_of(answer) == (503, "no_routable_server")
            assert answer.get(b"retry-after") == b"1"
            assert (await client.ask(get("/v1/models"))).status == 200


@on_loop
async def test_a_server_at_its_limit_is_passed_over_and_all_at_theirs_shed() -> None:
    gate = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await gate.wait()
        await connection.send(sized(b"{}"))

    async with serving(script) as one, serving(script) as two:
        servers = [server("a", one.port, slots=1), server("b", two.port, slots=1)]
        async with leaf(servers) as live, client_of(live) as c1, client_of(live) as c2, client_of(live) as c3:
            waiting = [asyncio.ensure_future(client.ask(chat())) for client in (c1, c2)]
            await until(lambda: len(one.heard) == len(two.heard) == 1)
            full = await c3.ask(chat())
            assert code_of(full) == (503, "all_servers_full")
            assert full.get(b"retry-after") == b"1"
            gate.set()
            assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]
            await live.settled()


@on_loop
async def test_a_body_after_the_answer_to_head_reaches_nobody() -> None:
    async with chain(answering(sized(b"surplus"))) as (_, live, client):
        for _ in range(2):
            answer = await client.ask(b"HEAD /v1/files HTTP/1.1\r\nHost: t\r\n\r\n", head_request=True)
            assert answer.get(b"content-length") == b"7"
        assert (await client.ask(get("/livez"))).body == b"ok\n"
        await live.settled()
