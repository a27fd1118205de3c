"""What servers decline is tried elsewhere; what none of them takes reaches the client as the last of them put it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlbctl.core.settings import EndpointSettings, RetrySettings, TierSettings, Timeouts
from dlbctl.router.limits import HttpLimits

from .live import NO_QUEUE, Live, client_of, leaf, on_loop, root, server
from .scripted import Connection, Script, ScriptedServer, answering, chunked, refusing_port, serving, sized
from .test_upstream_faults import STREAM_HEAD, dying
from .wire import Answer, Client, chat, post

BUSY = sized(b'{"error":"queue full"}', status=b"503 Service Unavailable")
AFTER_SENT = (EndpointSettings("m", retries=RetrySettings(after_sent=True)),)


@contextlib.asynccontextmanager
async def pair(
    one: Script, two: Script, **how: Any
) -> AsyncIterator[tuple[ScriptedServer, ScriptedServer, Live, Client]]:
    """A client, a leaf, and its servers a and b by script."""
    async with (
        serving(one) as a,
        serving(two) as b,
        leaf([server("a", a.port), server("b", b.port)], **how) as live,
        client_of(live) as client,
    ):
        yield a, b, live, client


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["code"]


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable"])
@on_loop
async def test_a_declined_request_goes_whole_to_another_server(status: bytes) -> None:
    """Cases 21 and 27."""
    body = b'{"model":"m","prompt":"' + b"x" * 5000 + b'"}'
    no = answering(sized(b"{}", status=status))
    async with pair(no, answering(sized(b"yes"))) as (one, two, live, client):
        answers = [await client.ask(post(body)) for _ in range(8)]
        assert {(answer.status, answer.body) for answer in answers} == {(200, b"yes")}
        assert all(heard.body == body for heard in [*one.heard, *two.heard])
        assert len(two.heard) == 8
        assert 1 <= len(one.heard) <= 4, "a busy server is left alone for a while"
        await live.settled()


@on_loop
async def test_when_all_decline_the_client_gets_the_last_real_answer() -> None:
    """Case 29."""
    script = answering(sized(b"not now", status=b"503 Nope", extra=b"x-why: full\r\nretry-after: 7\r\n"))
    async with pair(script, script) as (one, two, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.body, answer.whole) == (503, b"not now", True)
        assert answer.get(b"x-why") == b"full"
        assert answer.get(b"retry-after") == b"7"
        assert answer.get(b"x-dlb-server") in {b"a", b"b"}
        assert answer.get(b"x-request-id")
        assert len(one.heard) == len(two.heard) == 1
        await live.settled()
        again = await client.ask(chat())
        assert code_of(again) == (503, "all_servers_busy")
        assert again.get(b"retry-after") == b"7"


@on_loop
async def test_the_last_real_answer_is_given_even_when_the_last_attempt_met_nobody() -> None:
    async with serving(answering(chunked(b"full ", b"up", status=b"429 Too Many"))) as one:
        with refusing_port() as nobody:
            async with leaf([server("a", one.port), server("b", nobody)]) as live, client_of(live) as client:
                answer = await client.ask(chat())
                assert (answer.status, answer.body, answer.whole) == (429, b"full up", True)
                assert answer.get(b"retry-after") == b"1"
                await live.settled()


@on_loop
async def test_a_refusal_longer_than_can_be_kept_is_passed_on_whole() -> None:
    body = b"y" * 200_000
    script = answering(sized(body, status=b"503 Busy"))
    async with pair(script, script) as (one, two, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.body, answer.whole) == (503, body, True)
        assert len(one.heard) + len(two.heard) == 1
        await live.settled()


@on_loop
async def test_a_refusal_that_breaks_off_is_tried_elsewhere_too() -> None:
    half = b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\nhalf"
    async with pair(dying(half), answering(sized(b"yes"))) as (one, _, live, client):
        assert [(await client.ask(chat())).body for _ in range(6)] == [b"yes"] * 6
        assert one.heard
        await live.settled()


@on_loop
async def test_errors_are_tried_again_only_where_the_endpoint_says_so() -> None:
    script = answering(sized(b"oops", status=b"500 Oops"))
    async with serving(script) as one, serving(answering(sized(b"yes"))) as two:
        servers = [server("a", one.port), server("b", two.port)]
        async with leaf(servers) as live, client_of(live) as client:
            assert {(await client.ask(chat())).status for _ in range(12)} == {200, 500}
            await live.settled()
        async with leaf(servers, endpoints=AFTER_SENT) as live, client_of(live) as client:
            assert {(await client.ask(chat())).status for _ in range(12)} == {200}
            await live.settled()


@on_loop
async def test_a_server_that_dies_before_it_answers_is_another_ones_work_where_the_endpoint_says_so() -> None:
    async with serving(dying(b"")) as one, serving(answering(sized(b"yes"))) as two:
        servers = [server("a", one.port), server("b", two.port)]
        async with leaf(servers, endpoints=AFTER_SENT) as live, client_of(live) as client:
            assert {(await client.ask(chat())).status for _ in range(12)} == {200}
            assert one.heard
            await live.settled()


@on_loop
async def test_a_body_too_large_to_be_kept_is_sent_once() -> None:
    async with serving(answering(BUSY)) as one, serving(answering(BUSY)) as two:
        servers = [server("a", one.port), server("b", two.port)]
        async with leaf(servers, limits=HttpLimits(replay_bytes=1000)) as live, client_of(live) as client:
            answer = await client.ask(post(b'{"model":"m","prompt":"' + b"x" * 2000 + b'"}'))
            assert (answer.status, answer.body) == (503, b'{"error":"queue full"}')
            assert len(one.heard) + len(two.heard) == 1
            await live.settled()


@on_loop
async def test_a_server_that_is_loading_its_model_is_left_alone_until_it_is_done() -> None:
    """llama.cpp's answer to everything until then."""
    loading = sized(b'{"error":{"message":"Loading model","code":503}}', status=b"503 Service Unavailable")
    async with pair(answering(loading), answering(sized(b"yes"))) as (one, _, live, client):
        assert {(await client.ask(chat())).status for _ in range(12)} == {200}
        assert len(one.heard) == 1
        assert not live.router.tier.targets["a"].up
        await live.settled()


@on_loop
async def test_what_one_cell_declines_another_takes() -> None:
    """In one process: the leaf tier has nobody else to ask, the root tier has."""
    async with serving(answering(BUSY)) as one, serving(answering(sized(b"yes"))) as two:
        cells = [
            TierSettings("leaf", name, (server(name, port),), seed=1, queue=NO_QUEUE)
            for name, port in (("x", one.port), ("y", two.port))
        ]
        async with root([], local=cells) as live, client_of(live) as client:
            answers = [await client.ask(chat()) for _ in range(8)]
            assert {(answer.status, answer.get(b"x-dlb-cell")) for answer in answers} == {(200, b"y")}
            assert one.heard
            await live.settled()


@on_loop
async def test_a_client_that_leaves_while_a_refusal_comes_leaves_nothing() -> None:
    started = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\nhalf")
        started.set()
        await connection.left()

    async with serving(script) as one, leaf([server("a", one.port), server("b", one.port)]) as live:
        async with client_of(live) as client:
            await client.send(chat())
            await started.wait()
        await live.settled()


async def silent_after_its_head(connection: Connection) -> None:
    await connection.hear()
    await connection.send(STREAM_HEAD)
    await connection.left()


async def until_cut(live: Live) -> bytes:
    """Everything that one request brings until its connection ends."""
    async with client_of(live) as client:
        await client.send(chat())
        return await client.rest()


@on_loop
async def test_once_a_head_is_out_no_other_server_answers() -> None:
    """Engines send it before they have read the prompt, so it may be the first byte of the body that times out."""
    silent, limits = silent_after_its_head, Timeouts(first_byte_s=0.1)
    async with pair(silent, silent, endpoints=AFTER_SENT, timeouts=limits) as (one, two, live, _):
        assert (await until_cut(live)).count(b"HTTP/1.1") == 1
        assert len(one.heard) + len(two.heard) == 1
        await live.settled()


@pytest.mark.parametrize("limits", [Timeouts(first_byte_s=0.1), Timeouts(total_s=0.1)], ids=["first byte", "total"])
@on_loop
async def test_once_a_head_is_out_an_error_that_was_kept_is_not_put_behind_it(limits: Timeouts) -> None:
    retries = RetrySettings(attempts=2)
    async with pair(answering(BUSY), silent_after_its_head, timeouts=limits, retries=retries) as (one, _, live, _):
        while not one.heard:
            got = await until_cut(live)
            assert got.startswith(b"HTTP/1.1 200 OK")
            assert got.count(b"HTTP/1.1") == 1
        await live.settled()


@pytest.mark.parametrize("how", [{"retries": RetrySettings(attempts=1)}, {"limits": HttpLimits(replay_bytes=5)}])
@on_loop
async def test_a_busy_server_is_left_alone_as_long_as_it_asks_though_nothing_is_tried_again(how: Any) -> None:
    busy = sized(b"no", status=b"503 Nope", extra=b"retry-after: 7\r\n")
    async with serving(answering(busy)) as one, leaf([server("a", one.port)], **how) as live, client_of(live) as client:
        answer = await client.ask(chat())
        assert (answer.status, answer.body, answer.get(b"retry-after")) == (503, b"no", b"7")
        (candidate,) = live.tier.targets["a"].candidates
        assert candidate.busy_until_s - live.router.clock() > 5.0
        await live.settled()
