"""Cases 1 to 10: requests in flight are counted once, and taken back once, whatever happens to them."""

from __future__ import annotations

import asyncio

import pytest

from dlbctl.core.settings import EndpointSettings, Timeouts
from tests.cases.scene import (
    DONE,
    END,
    EVENT,
    OK,
    STREAM_HEAD,
    ask,
    candidate,
    clients_of,
    code_of,
    held_stream,
    servers_of,
    totals,
)
from tests.router.live import assert_idle, chain, client_of, leaf, mark_up, on_loop, server, until
from tests.router.scripted import Connection, Held, answering, chunk, full_backlog, refusing_port, serving
from tests.router.wire import chat


async def never_answering(connection: Connection) -> None:
    await connection.hear()
    await connection.left()


async def resetting(connection: Connection) -> None:
    await connection.hear()
    connection.reset()


@pytest.mark.parametrize("fault", ["refuses", "resets", "times out"])
@on_loop
async def test_case_1_a_failed_upstream_is_no_longer_counted(fault: str) -> None:
    """An upstream refuses, resets or times out: its RIF is back to zero. skypilot#10444, production-stack!1072."""
    script, limits = (resetting, None) if fault == "resets" else (never_answering, Timeouts(first_byte_s=0.1))
    with refusing_port() as nobody:
        async with serving(script) as engine:
            port = nobody if fault == "refuses" else engine.port
            async with leaf([server("s", port)], timeouts=limits) as live:
                answer = await ask(live)
                expected = {
                    "refuses": (502, "upstream_unreachable"),
                    "resets": (502, "upstream_closed"),
                    "times out": (504, "upstream_first_byte_timeout"),
                }
                assert code_of(answer) == expected[fault]
                await live.settled()
                assert totals(live) == (1, 1)


@on_loop
async def test_case_2_a_client_that_leaves_before_the_head_frees_its_server_at_once() -> None:
    """The client leaves while the prompt is read: RIF zero, the upstream socket closed. vllm router!215."""
    held = Held(b"", OK)
    async with chain(held.script) as (engine, live, client):
        await client.send(chat())
        await until(lambda: len(engine.heard) == 1)
        assert candidate(live).in_flight == 1
        client.abort()
        await until(lambda: held.left == 1)
        await live.settled()


class Broken(asyncio.Transport):
    """A transport that raises when it is used, as uvloop's do on a closed handle."""

    def write(self, data: object) -> None:
        raise RuntimeError("unable to perform operation on a closed handle")

    def abort(self) -> None:
        raise RuntimeError("unable to perform operation on a closed handle")

    def is_closing(self) -> bool:
        return False


@on_loop
async def test_case_3_a_clean_up_that_raises_still_gives_back() -> None:
    """Closing the upstream of a client that left raises: the count goes down all the same."""
    async with chain(held_stream().script) as (_, live, client):
        live.router.loop.set_exception_handler(lambda *_: None)
        await client.send(chat())
        await client.reader.readuntil(EVENT)
        (upstream,) = live.router.pool(live.tier.targets["s"].addresses[0]).open
        real, upstream.transport = upstream.transport, Broken()
        client.abort()
        await until(lambda: not live.tier.exchanges)
        assert_idle(live.tier)
        real.abort()


@on_loop
async def test_case_3_an_end_that_cannot_be_written_still_gives_back() -> None:
    """The last write to the client raises: the count goes down all the same."""
    held = held_stream()
    async with chain(held.script) as (_, live, client):
        live.router.loop.set_exception_handler(lambda *_: None)
        await client.send(chat())
        await client.reader.readuntil(EVENT)
        (downstream,) = live.connections
        real, downstream.transport = downstream.transport, Broken()
        try:
            held.go.set()
            await until(lambda: not live.tier.exchanges)
            assert_idle(live.tier)
        finally:
            downstream.transport = real


@on_loop
async def test_case_4_a_stream_without_done_is_given_back_once() -> None:
    """A stream ends without `[DONE]` while another runs on: exactly one is taken off. sglang!8972."""
    held = held_stream()

    async def script(connection: Connection) -> None:
        if len(connection.server.connections) == 1:
            await held.script(connection)
        await connection.hear()
        await connection.send(STREAM_HEAD + chunk(EVENT) + END)

    async with serving(script) as engine, leaf([server("s", engine.port)]) as live, client_of(live) as running:
        await running.send(chat())
        await running.reader.readuntil(EVENT)
        answer = await ask(live)
        assert (answer.body, answer.whole) == (EVENT, True)
        assert (candidate(live).in_flight, live.tier.targets["s"].in_flight) == (1, 1)
        held.go.set()
        await running.reader.readuntil(DONE)
        await live.settled()
        assert totals(live) == (2, 0)


@on_loop
async def test_case_5_each_attempt_is_counted_where_it_was_made() -> None:
    """The first attempt fails, the second succeeds: one up and one down at each of them. vllm router!216."""
    held = Held(b"", OK)
    with refusing_port() as nobody:
        async with serving(held.script) as engine:
            rif = EndpointSettings("m", policy="discrete/rif")
            servers = [server("dead", nobody), server("s", engine.port)]
            async with leaf(servers, endpoints=[rif]) as live, clients_of(live, 8) as clients:
                for client in clients:
                    await client.send(chat())
                await until(lambda: len(engine.heard) == 8)
                assert (candidate(live, "dead").in_flight, candidate(live).in_flight) == (0, 8)
                assert live.tier.endpoints["m"].in_flight == 8
                held.go.set()
                assert [(await client.answer()).status for client in clients] == [200] * 8
                await live.settled()


@on_loop
async def test_case_6_a_target_that_comes_back_starts_at_zero_and_stays_there() -> None:
    """A target is removed and added again under a running request: its counts never go below zero. aibrix#2421."""
    held = held_stream()
    async with chain(held.script) as (_, live, client):
        await client.send(chat())
        await client.reader.readuntil(EVENT)
        before, settings = candidate(live), [target.settings for target in live.tier.targets.values()]
        live.tier.targets_changed([])
        live.tier.targets_changed(settings)
        mark_up(live.tier)
        again = candidate(live)
        assert (again is before, again.in_flight, live.tier.endpoints["m"].in_flight) == (False, 0, 1)
        held.go.set()
        await client.reader.readuntil(DONE)
        await live.settled()
        assert (before.in_flight, before.target.in_flight) == (0, 0)


@on_loop
async def test_case_7_health_that_flaps_resets_no_count() -> None:
    """A target is called down and up again under load: what runs there stays counted. vllm router#197."""
    held = held_stream()
    async with chain(held.script) as (engine, live, _), clients_of(live, 10) as clients:
        for client in clients:
            await client.send(chat())
            await client.reader.readuntil(EVENT)
        for up in (False, True, False, True):
            live.tier.address_changed(live.router.clock(), "s", engine.url, up)
            assert (candidate(live).in_flight, live.tier.targets["s"].in_flight) == (10, 10)
        assert (live.tier.endpoints["m"].in_flight, live.tier.endpoints["m"].rif) == (10, 10)
        held.go.set()
        for client in clients:
            await client.reader.readuntil(DONE)
        await live.settled()


@on_loop
async def test_case_8_simultaneous_arrivals_spread_evenly() -> None:
    """64 requests reach four idle servers at once: a choice and its count are one step. aibrix#2422."""
    held = Held(b"", OK)
    async with serving(held.script) as engine:
        servers = [server(f"s{n}", engine.port) for n in range(4)]
        rif = EndpointSettings("m", policy="discrete/rif")
        async with leaf(servers, endpoints=[rif]) as live, clients_of(live, 64) as clients:
            for client in clients:
                client.writer.write(chat())
            await until(lambda: len(engine.heard) == 64)
            assert [candidate(live, f"s{n}").in_flight for n in range(4)] == [16] * 4
            held.go.set()
            assert set(servers_of([await client.answer() for client in clients]).values()) == {16}
            await live.settled()


@pytest.mark.parametrize("policy", ["", "discrete/rif"])
@on_loop
async def test_case_9_equal_targets_are_picked_at_random(policy: str) -> None:
    """All targets are idle for each of 90 requests: not always the first. smg!2096, envoy#11004."""
    async with serving(answering(OK)) as engine:
        servers = [server(f"s{n}", engine.port) for n in range(3)]
        async with leaf(servers, endpoints=[EndpointSettings("m", policy=policy)]) as live, client_of(live) as client:
            shares = servers_of([await client.ask(chat()) for _ in range(90)])
            assert len(shares) == 3
            # Mean 30, SD 4.5: four of them and a half, and the seed is fixed.
            assert min(shares.values()) > 10
            await live.settled()


@on_loop
async def test_case_10_a_connection_that_is_still_being_made_counts() -> None:
    """A server's connects hang: those requests are load, so the next ones go elsewhere. envoy#44989."""
    rif = EndpointSettings("m", policy="discrete/rif")
    held = Held(b"", OK)
    async with full_backlog() as stuck, serving(held.script) as engine:
        servers = [server("stuck", stuck), server("s", engine.port)]
        async with leaf(servers, endpoints=[rif], timeouts=Timeouts(connect_s=20.0)) as live:
            async with clients_of(live, 10) as clients:
                for client in clients:
                    await client.send(chat())
                await until(lambda: live.tier.endpoints["m"].in_flight == 10)
                assert (candidate(live, "stuck").in_flight, candidate(live).in_flight) == (5, 5)
            await live.settled()
