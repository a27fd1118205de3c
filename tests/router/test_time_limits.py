"""How long each phase of an attempt may last: what the client is told, and that the server is left."""

from __future__ import annotations

import asyncio

from dlbctl.core.settings import Timeouts

from .live import chain, client_of, leaf, on_loop, server, until
from .scripted import Connection, answering, chunk, full_backlog, serving, sized
from .test_upstream_faults import EVENT, STREAM_HEAD, code_of, totals
from .wire import chat


async def silent(connection: Connection) -> None:
    await connection.hear()
    await connection.left()


@on_loop
async def test_a_first_byte_that_does_not_come_is_a_504_and_the_server_is_left() -> None:
    async with chain(silent, timeouts=Timeouts(first_byte_s=0.1)) as (engine, live, client):
        assert code_of(await client.ask(chat())) == (504, "upstream_first_byte_timeout")
        await until(lambda: engine.connections[0].gone)
        assert len(engine.heard) == 1, "it was written, so it is not sent again"
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_a_stream_that_falls_silent_is_cut_and_the_server_left() -> None:
    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD + chunk(EVENT))
        await connection.left()

    async with chain(script, timeouts=Timeouts(idle_s=0.1)) as (engine, live, client):
        answer = await client.ask(chat())
        assert (answer.status, answer.body, answer.whole) == (200, EVENT, False)
        await until(lambda: engine.connections[0].gone)
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_a_stream_that_keeps_flowing_outlives_every_limit_but_the_total() -> None:
    """Case 37."""

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD)
        for _ in range(20):
            await connection.send(chunk(EVENT))
            await asyncio.sleep(0.03)
        await connection.send(b"0\r\n\r\n")

    async with chain(script, timeouts=Timeouts(connect_s=0.25, first_byte_s=0.25, idle_s=0.25)) as (_, live, client):
        answer = await client.ask(chat())
        assert (answer.body, answer.whole) == (EVENT * 20, True)
        await live.settled()
    async with chain(script, timeouts=Timeouts(total_s=0.25)) as (_, live, client):
        answer = await client.ask(chat())
        assert not answer.whole
        assert answer.body.startswith(EVENT)
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_the_total_limit_holds_before_the_first_byte() -> None:
    async with chain(silent, timeouts=Timeouts(total_s=0.1)) as (_, live, client):
        assert code_of(await client.ask(chat())) == (504, "total_timeout")
        await live.settled()


@on_loop
async def test_the_total_limit_holds_for_a_request_that_has_waited_it_out_in_the_pipeline() -> None:
    async with chain(silent, timeouts=Timeouts(total_s=0.3)) as (_, live, client):
        await client.send(chat() + chat())
        assert code_of(await client.answer()) == (504, "total_timeout")
        assert code_of(await client.answer()) == (504, "total_timeout")
        await live.settled()


@on_loop
async def test_a_connection_that_is_not_made_in_time_is_a_504() -> None:
    """A listener whose backlog is full: the kernel drops further SYNs and nobody answers."""
    async with (
        full_backlog() as port,
        leaf([server("s", port)], timeouts=Timeouts(connect_s=0.2)) as live,
        client_of(live) as client,
    ):
        assert code_of(await client.ask(chat())) == (504, "upstream_connect_timeout")
        await live.settled()
        assert totals(live) == (1, 1)


@on_loop
async def test_a_connection_that_is_not_made_in_time_leads_to_another_server() -> None:
    async with full_backlog() as port, serving(answering(sized(b"{}"))) as engine:
        for _ in range(3):
            servers = [server("stuck", port), server("alive", engine.port)]
            async with leaf(servers, timeouts=Timeouts(connect_s=0.1)) as live, client_of(live) as client:
                for _ in range(3):
                    assert (await client.ask(chat())).get(b"x-dlb-server") == b"alive"
                await live.settled()
