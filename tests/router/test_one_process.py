"""A root whose cells run in its own process: two tiers stacked, and every fault is counted once in each."""

from __future__ import annotations

import asyncio
import json

import pytest

from dlbctl.core.settings import TierSettings, Timeouts

from .live import NO_QUEUE, client_of, on_loop, root, server, until
from .scripted import Connection, answering, full_backlog, once, refusing_port, serving, sized
from .test_upstream_faults import BODY, close_at_once, closing_when_used_again
from .wire import Answer, chat, get, post


def cell(name: str, *ports: int, slots: int = 0, timeouts: Timeouts | None = None) -> TierSettings:
    """A cell of servers that serve `m`, named by their position."""
    servers = tuple(server(f"{name}-{n}", port, slots=slots) for n, port in enumerate(ports))
    return TierSettings("leaf", name, servers, timeouts=timeouts or Timeouts(), seed=1, queue=NO_QUEUE)


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["code"]


@on_loop
async def test_both_tiers_are_named_to_the_client_and_neither_to_the_server() -> None:
    async with serving(answering(sized(b"{}"))) as engine, root([], local=[cell("eu", engine.port)]) as live:
        async with client_of(live) as client:
            answer = await client.ask(post(BODY))
        assert (answer.get(b"x-dlb-cell"), answer.get(b"x-dlb-server")) == (b"eu", b"eu-0")
        assert [name for name, _ in engine.heard[0].fields if name.startswith(b"dlb-")] == []
        await live.settled()


@on_loop
async def test_a_stale_connection_is_replaced_under_two_tiers() -> None:
    script = closing_when_used_again(answering(sized(b'{"again":1}')))
    async with serving(script) as engine, root([], local=[cell("eu", engine.port)]) as live, client_of(live) as client:
        assert (await client.ask(chat())).status == 200
        answer = await client.ask(post(BODY))
        assert (answer.status, answer.body) == (200, b'{"again":1}')
        assert engine.heard[-1].body == BODY
        await live.settled()


@on_loop
async def test_a_second_loss_ends_both_tiers() -> None:
    script = closing_when_used_again(close_at_once)
    async with serving(script) as engine, root([], local=[cell("eu", engine.port)]) as live, client_of(live) as client:
        assert (await client.ask(chat())).status == 200
        assert code_of(await client.ask(chat())) == (502, "upstream_closed")
        await live.settled()


@on_loop
async def test_a_refusal_is_mended_within_the_cell() -> None:
    with refusing_port() as dead:
        async with serving(answering(sized(b"{}"))) as engine:
            for ports in ((dead, engine.port), (engine.port, dead)):
                async with root([], local=[cell("eu", *ports)]) as live, client_of(live) as client:
                    for _ in range(4):
                        answer = await client.ask(post(BODY))
                        assert (answer.status, engine.heard[-1].body) == (200, BODY)
                    await live.settled()


@on_loop
async def test_a_cell_that_cannot_serve_hands_over_to_another() -> None:
    with refusing_port() as dead:
        async with serving(answering(sized(b"{}"))) as engine:
            for names in (("a", "b"), ("b", "a")):
                cells = [cell(names[0], dead), cell(names[1], engine.port)]
                async with root([], local=cells) as live, client_of(live) as client:
                    for _ in range(4):
                        answer = await client.ask(post(BODY))
                        assert (answer.status, answer.get(b"x-dlb-cell")) == (200, names[1].encode())
                    await live.settled()


@on_loop
async def test_no_cell_that_can_serve_is_told_with_the_inner_reason() -> None:
    with refusing_port() as dead:
        async with root([], local=[cell("eu", dead)]) as live, client_of(live) as client:
            answer = await client.ask(chat())
            assert code_of(answer) == (502, "upstream_unreachable")
            answer = await client.ask(chat())
            assert answer.status == 503
            assert (await client.ask(get("/livez"))).status == 200
            await live.settled()


@on_loop
async def test_a_full_cell_sheds_with_its_reason() -> None:
    gate = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await gate.wait()
        await connection.send(sized(b"{}"))

    async with serving(script) as engine, root([], local=[cell("eu", engine.port, slots=1)]) as live:
        async with client_of(live) as one, client_of(live) as two:
            first = asyncio.ensure_future(one.ask(chat()))
            await until(lambda: len(engine.heard) == 1)
            answer = await two.ask(chat())
            assert code_of(answer) == (503, "all_servers_full")
            assert answer.get(b"retry-after") == b"1"
            gate.set()
            assert (await first).status == 200
        await live.settled()


@pytest.mark.parametrize("code", ["upstream_first_byte_timeout", "total_timeout"])
@on_loop
async def test_a_limit_ends_both_tiers(code: str) -> None:
    limits = Timeouts(first_byte_s=0.1) if code.startswith("upstream") else Timeouts(total_s=0.1)

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.left()

    async with serving(script) as engine, root([], local=[cell("eu", engine.port, timeouts=limits)]) as live:
        async with client_of(live) as client:
            assert code_of(await client.ask(chat())) == (504, code)
        await live.settled()


@on_loop
async def test_out_of_time_while_connecting_is_the_end_and_no_other_cell_is_tried() -> None:
    limits = Timeouts(connect_s=5.0, total_s=0.1)
    async with full_backlog() as one, full_backlog() as two:
        cells = [cell("a", one, timeouts=limits), cell("b", two, timeouts=limits)]
        async with root([], local=cells) as live, client_of(live) as client:
            assert code_of(await client.ask(chat())) == (504, "total_timeout")
            asked = [sum(leaf.endpoints["m"].received.values()) for leaf in live.router.local.values()]
            assert sorted(asked) == [0, 1]
            await live.settled()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
@on_loop
async def test_a_client_that_leaves_leaves_both_tiers(begun: bytes) -> None:
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(begun)
        await connection.left()
        ended.set()

    async with serving(script) as engine, root([], local=[cell("eu", engine.port)]) as live:
        async with client_of(live) as client:
            await client.send(chat())
            await until(lambda: len(engine.heard) == 1)
        await ended.wait()
        await live.settled()


@on_loop
async def test_a_server_that_dies_in_mid_answer_ends_both_tiers() -> None:
    script = once(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
    async with serving(script) as engine, root([], local=[cell("eu", engine.port)]) as live, client_of(live) as client:
        answer = await client.ask(chat())
        assert (answer.status, answer.body, answer.whole) == (200, b"half", False)
        await live.settled()
