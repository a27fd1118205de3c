"""Connections to servers that nobody uses are closed after a while; those in use and those just used are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from .live import Live, client_of, leaf, on_loop, server, until
from .scripted import Connection, Script, ScriptedServer, answering, serving, sized
from .wire import Client, chat

IDLE_S = 0.3


def once_open(gate: asyncio.Event) -> Script:
    """Answers when the gate is open, and notices when the router closes."""

    async def script(connection: Connection) -> None:
        try:
            while True:
                await connection.hear()
                await gate.wait()
                await connection.send(sized(b"{}"))
        finally:
            connection.gone = True

    return script


@on_loop
async def test_an_unused_connection_is_closed_and_the_next_request_makes_another() -> None:
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)], upstream_idle_s=IDLE_S) as live,
        client_of(live) as client,
    ):
        pool = live.router.pool(engine.url)
        for connections in (1, 2, 3):
            started_s = live.router.clock()
            assert (await client.ask(chat())).status == 200
            assert len(pool.idle) == 1
            await until(lambda: not pool.open)
            assert pool.idle == []
            assert live.router.clock() - started_s >= IDLE_S
            assert len(engine.connections) == connections


@contextlib.asynccontextmanager
async def two_idle() -> AsyncIterator[tuple[ScriptedServer, Live, Client]]:
    """A server to which a leaf has just used two connections at once, and a client of the leaf."""
    gate = asyncio.Event()
    async with (
        serving(once_open(gate)) as engine,
        leaf([server("s", engine.port)], upstream_idle_s=IDLE_S) as live,
        client_of(live) as one,
        client_of(live) as two,
    ):
        asking = [asyncio.ensure_future(client.ask(chat())) for client in (one, two)]
        await until(lambda: len(engine.heard) == 2)
        gate.set()
        assert [(await answer).status for answer in asking] == [200, 200]
        yield engine, live, one


@on_loop
async def test_only_the_connection_that_is_not_needed_is_closed() -> None:
    async with two_idle() as (engine, live, one):
        while not any(connection.gone for connection in engine.connections):
            assert (await one.ask(chat())).status == 200
        assert (await one.ask(chat())).status == 200
        assert [connection.gone for connection in engine.connections].count(False) == 1
        assert len(engine.connections) == 2
        await live.settled()


@on_loop
async def test_connections_last_used_at_different_times_are_all_closed_in_the_end() -> None:
    async with two_idle() as (engine, live, one):
        last_s = live.router.clock()
        while live.router.clock() < last_s + IDLE_S / 2:  # longer than the wheel's tick
            assert (await one.ask(chat())).status == 200
        await until(lambda: not live.router.pool(engine.url).open)
        assert len(engine.connections) == 2


@on_loop
async def test_a_connection_in_use_is_not_idle_however_long_its_answer_takes() -> None:
    gate = asyncio.Event()
    async with (
        serving(once_open(gate)) as engine,
        leaf([server("s", engine.port)], upstream_idle_s=IDLE_S) as live,
        client_of(live) as client,
    ):
        gate.set()
        assert (await client.ask(chat())).status == 200
        gate.clear()
        asking = asyncio.ensure_future(client.ask(chat()))
        await until(lambda: len(engine.heard) == 2)
        asked_s = live.router.clock()
        await until(lambda: live.router.clock() > asked_s + 2 * IDLE_S)
        gate.set()
        assert (await asking).status == 200
        assert len(engine.connections) == 1
