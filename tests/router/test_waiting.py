"""Requests that wait at a leaf for a server with room, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dlbctl.core.settings import EndpointSettings, QueueSettings, TierSettings, Timeouts

from .live import Live, client_of, leaf, on_loop, root, server, until
from .scripted import Connection, ScriptedServer, serving, sized
from .test_peers import cell, probing
from .wire import post

BODY = b'{"model":"m"}'


class Gate:
    """A server with one slot that answers one request each time it is let."""

    def __init__(self) -> None:
        self.order: list[bytes] = []
        self._let = asyncio.Semaphore(0)

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._let.release()

    async def script(self, connection: Connection) -> None:
        while True:
            heard = await connection.hear()
            self.order.append(heard.get(b"x-request-id") or b"")
            await self._let.acquire()
            await connection.send(sized(b"done"))


@asynccontextmanager
async def gated(
    size: int = 8, max_wait_s: float = 30.0, **how: Any
) -> AsyncIterator[tuple[Gate, ScriptedServer, Live]]:
    gate = Gate()
    queue = QueueSettings(size=size, max_wait_s=max_wait_s)
    async with (
        serving(gate.script) as engine,
        leaf([server("a", engine.port, slots=1)], queue=queue, **how) as live,
    ):
        yield gate, engine, live


async def ask(live: Live, name: str, extra: bytes = b"", waiting: int | None = None) -> asyncio.Task[tuple[int, str]]:
    """Send a request on a connection of its own; it has arrived when this returns, and waits when `waiting` says."""

    async def whole() -> tuple[int, str]:
        async with client_of(live) as client:
            answer = await client.ask(post(BODY, extra=b"x-request-id: %b\r\n%b" % (name.encode(), extra)))
            code = json.loads(answer.body)["error"]["code"] if answer.status != 200 else ""
            return answer.status, code

    task = asyncio.ensure_future(whole())
    if waiting is not None:
        await until(lambda: len(live.router.waiting) == waiting or task.done())
    return task


@on_loop
async def test_requests_beyond_the_slots_wait_and_are_served_in_turn() -> None:
    async with gated() as (gate, engine, live):
        tasks = [await ask(live, f"r{n}", waiting=n) for n in range(5)]
        assert len(engine.heard) == 1
        gate.let(5)
        assert await asyncio.gather(*tasks) == [(200, "")] * 5
        assert gate.order == [b"r0", b"r1", b"r2", b"r3", b"r4"]
        await live.settled()
        assert not live.router.waiting


@on_loop
async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    async with gated() as (gate, _, live):
        first = await ask(live, "first", waiting=0)
        await until(lambda: len(gate.order) == 1)
        async with client_of(live) as client:
            await client.send(post(BODY))
            await until(lambda: len(live.router.waiting) == 1)
        await until(lambda: not live.router.waiting)
        assert not live.router.waiting
        gate.let()
        assert await first == (200, "")
        assert gate.order == [b"first"]
        await live.settled()


@on_loop
async def test_a_full_queue_and_a_wait_too_long_are_503_with_the_time_to_come_back() -> None:
    async with gated(size=1, max_wait_s=0.2) as (gate, _, live):
        first = await ask(live, "first", waiting=0)
        await until(lambda: len(gate.order) == 1)
        second = await ask(live, "second", waiting=1)
        assert await (await ask(live, "third")) == (503, "queue_full")
        assert await second == (503, "queue_timeout")
        gate.let()
        assert await first == (200, "")
        await live.settled()


@on_loop
async def test_the_urgent_go_first_where_clients_may_say_so_and_not_elsewhere() -> None:
    for accept, order in ((True, [b"first", b"high", b"low"]), (False, [b"first", b"low", b"high"])):
        async with gated(accept_priority=accept) as (gate, _, live):
            tasks = [await ask(live, "first", waiting=0)]
            await until(lambda gate=gate: len(gate.order) == 1)  # type: ignore[misc]
            tasks.append(await ask(live, "low", waiting=1))
            tasks.append(await ask(live, "high", b"x-dlb-priority: 5\r\n", waiting=2))
            gate.let(3)
            await asyncio.gather(*tasks)
            assert gate.order == order


@on_loop
async def test_a_more_urgent_request_takes_a_full_queues_place_and_the_other_is_told() -> None:
    async with gated(size=1, accept_priority=True) as (gate, _, live):
        first = await ask(live, "first", waiting=0)
        await until(lambda: len(gate.order) == 1)
        low = await ask(live, "low", waiting=1)
        high = await ask(live, "high", b"x-dlb-priority: 1\r\n")
        assert await low == (503, "queue_shed")
        gate.let(2)
        assert [await first, await high] == [(200, ""), (200, "")]
        await live.settled()


@on_loop
async def test_a_client_says_how_long_it_will_wait() -> None:
    async with gated() as (gate, _, live):
        first = await ask(live, "first", waiting=0)
        await until(lambda: len(gate.order) == 1)
        assert await (await ask(live, "hasty", b"x-dlb-deadline: 0.1\r\n")) == (503, "queue_timeout")
        gate.let()
        assert await first == (200, "")


@on_loop
async def test_what_no_server_of_a_cell_has_room_for_in_time_goes_to_another_cell() -> None:
    """In one process: the leaf gives up waiting, the root asks elsewhere."""
    gate, other = Gate(), Gate()
    other.let(10)
    async with serving(gate.script) as one, serving(other.script) as two:
        cells = [
            TierSettings("leaf", name, (server(name, port, slots=1),), seed=1, queue=QueueSettings(4, 0.2))
            for name, port in (("x", one.port), ("y", two.port))
        ]
        async with root([], local=cells) as live:
            tasks = [await ask(live, f"r{n}") for n in range(8)]
            await until(lambda: len(other.order) == 7)
            gate.let(8)
            assert await asyncio.gather(*tasks) == [(200, "")] * 8
            await live.settled()


@on_loop
async def test_the_total_limit_holds_while_a_request_waits() -> None:
    gate = Gate()
    endpoints = (EndpointSettings("m", timeouts=Timeouts(total_s=0.1)), EndpointSettings("n"))
    async with (
        serving(gate.script) as engine,
        leaf([server("a", engine.port, "m", "n", slots=1)], endpoints=endpoints, queue=QueueSettings()) as live,
        client_of(live) as other,
    ):
        await other.send(post(b'{"model":"n"}'))
        await until(lambda: bool(engine.heard))
        assert await (await ask(live, "r", waiting=1)) == (504, "total_timeout")
        gate.let()
        assert (await other.answer()).status == 200
        await live.settled()
        assert not live.router.waiting


@on_loop
async def test_requests_that_wait_for_a_server_that_is_taken_away_are_told_so() -> None:
    async with gated() as (gate, _, live):
        at_work, *waiting = [await ask(live, f"r{n}", waiting=n) for n in range(3)]
        live.tier.targets_changed([])
        live.router.moved()
        assert [await task for task in waiting] == [(503, "no_routable_server")] * 2
        gate.let()
        assert await at_work == (200, "")
        await live.settled()
        assert not live.router.waiting


# -- behind a root -----------------------------------------------------------------------------------------


@asynccontextmanager
async def behind_a_root(size: int) -> AsyncIterator[tuple[Gate, Live, Live]]:
    """A gate, a leaf in front of it and a root in front of that."""
    async with gated(size=size, cell="eu") as (gate, _, eu), probing([cell("eu", eu.peer_port)]) as front:
        await until(front.router.routable)
        front.router.accept_priority = True
        yield gate, eu, front
        await front.settled()
        await eu.settled()


async def at_leaf(eu: Live, front: Live, name: str, extra: bytes = b"") -> asyncio.Task[tuple[int, str]]:
    """A request of the root's that is at work or waits in the leaf when this returns."""
    task = await ask(front, name, extra)
    await until(lambda: name in [exchange.arrival.id for exchange in eu.tier.exchanges.values()] or task.done())
    return task


@on_loop
async def test_what_one_clients_deadline_forbids_does_not_keep_others_from_the_cell() -> None:
    async with behind_a_root(size=8) as (gate, eu, front):
        gate.let()  # once one has ended it is known at which rate they do
        assert await (await ask(front, "first")) == (200, "")
        tasks = [await at_leaf(eu, front, f"r{n}") for n in range(2)]
        assert await (await ask(front, "hasty", b"x-dlb-deadline: 0.001\r\n")) == (503, "queue_deadline")
        tasks.append(await at_leaf(eu, front, "patient"))
        gate.let(3)
        assert await asyncio.gather(*tasks) == [(200, "")] * 3


@on_loop
async def test_a_full_queue_does_not_keep_more_urgent_requests_from_the_cell() -> None:
    async with behind_a_root(size=1) as (gate, eu, front):
        at_work, waiting = [await at_leaf(eu, front, f"r{n}") for n in range(2)]
        assert await (await ask(front, "late")) == (503, "queue_full")
        urgent = await at_leaf(eu, front, "urgent", b"x-dlb-priority: 5\r\n")
        assert await waiting == (503, "queue_shed")
        gate.let(2)
        assert [await at_work, await urgent] == [(200, "")] * 2
