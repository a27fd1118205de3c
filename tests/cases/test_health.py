"""Cases 20 to 32: who is taken for ill and who is not, what is tried again, and when to say no at once."""

from __future__ import annotations

import asyncio

import pytest

from dlbctl.core.settings import EndpointSettings, Timeouts
from tests.cases.scene import OK, ask, clients_of, code_of, servers_of
from tests.router.live import client_of, leaf, on_loop, server, until
from tests.router.scripted import Connection, answering, refusing_port, serving, sized
from tests.router.site import both, site
from tests.router.test_discovery import discovering, learning, models
from tests.router.wire import chat, post

BODY = b'{"model":"m","prompt":"%b"}' % (b"x" * 100_000)


async def hanging(connection: Connection) -> None:
    """Takes a request and never answers."""
    await connection.hear()
    await connection.left()


@on_loop
async def test_case_20_errors_of_clients_eject_nobody() -> None:
    """A burst of 400s for contexts that are too long: the server is as routable as before. sglang#25811."""
    too_long = sized(b'{"error":{"message":"too long"}}', status=b"400 Bad Request")
    async with serving(answering(too_long)) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            assert {(await client.ask(chat())).status for _ in range(100)} == {400}
        assert live.router.routable()
        assert len(engine.heard) == 100
        await live.settled()


@on_loop
async def test_case_22_a_target_that_recovers_is_used_by_itself() -> None:
    """A server is gone and comes back: no operator, no restart of the router. sglang#31206."""
    with refusing_port() as port:
        pass
    async with discovering([learning("s", port)]) as (live, client):
        for _ in range(2):
            async with serving(answering(models("m")), port=port):
                await until(live.router.routable)
                assert (await client.ask(chat())).status == 200
            assert (await client.ask(chat())).status in {502, 503}
            await until(lambda: not live.router.routable())


@on_loop
async def test_case_22_the_first_missed_probe_of_a_busy_target_ejects_nobody() -> None:
    """One probe is lost: the server stays routable until the next one. sglang!9198."""
    missed = asyncio.Event()

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            if len(connection.server.heard) == 2:
                missed.set()
                connection.reset()
            await connection.send(models("m"))

    async with serving(script) as engine, discovering([learning("s", engine.port)]) as (live, _):
        await until(live.router.routable)
        await missed.wait()
        while len(engine.heard) < 3:
            assert live.router.routable()
            await asyncio.sleep(0.001)


@on_loop
async def test_case_23_one_hanging_target_bounds_its_callers_and_leaves_the_others_alone() -> None:
    """One of two servers never answers: its callers wait no longer than they may. production-stack#749."""
    limits = Timeouts(first_byte_s=0.3)
    async with serving(hanging) as stuck, serving(answering(OK)) as engine:
        servers = [server("stuck", stuck.port), server("s", engine.port)]
        async with leaf(servers, timeouts=limits) as live, clients_of(live, 20) as clients:
            async with asyncio.timeout(5):
                answers = await asyncio.gather(*(client.ask(chat()) for client in clients))
            assert {answer.status for answer in answers} == {200, 504}
            assert servers_of(answer for answer in answers if answer.status == 200).keys() == {b"s"}
            await live.settled()


@both
@pytest.mark.parametrize("close_delay_s", [0.0, 0.2])
@on_loop
async def test_case_25_a_server_that_closes_idle_connections_costs_no_5xx(shape: str, close_delay_s: float) -> None:
    """A pooled connection is used just as its server closes it, or has closed it unheard. smg!2162, sozu#1442."""
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        try:
            while True:
                async with asyncio.timeout(0.05):
                    await connection.hear()
                await connection.send(OK)
        except TimeoutError:
            await connection.close()
            closed.set()

    async with site(shape, script) as made:
        made.relay.down.close_delay_s = close_delay_s
        assert (await made.ask()).status == 200
        await closed.wait()
        answer = await made.ask(post(BODY))
        assert (answer.status, made.engine.heard[-1].body) == (200, BODY)
        assert len(made.engine.heard) == 2
        await made.settled()


@on_loop
async def test_case_27_another_target_receives_the_whole_body() -> None:
    """The first target refuses a POST of 100 kB: the second gets every byte of it. caddy#7546."""
    rif = EndpointSettings("m", policy="discrete/rif")
    with refusing_port() as nobody:
        async with serving(answering(OK)) as engine:
            servers = [server("dead", nobody), server("s", engine.port)]
            refused = 0
            for order in (servers, servers[::-1]):  # one of them has the dead one asked first
                async with leaf(order, endpoints=[rif]) as live:
                    answer = await ask(live, post(BODY))
                    assert (answer.status, engine.heard[-1].body) == (200, BODY)
                    refused += not live.tier.targets["dead"].up
                    await live.settled()
            assert refused == 1


@on_loop
async def test_case_28_what_was_written_is_not_sent_again_when_no_byte_comes() -> None:
    """The first byte times out after the request was written: the client is told, nobody else asked. traefik#3285."""
    async with serving(hanging) as one, serving(hanging) as two:
        servers = [server("one", one.port), server("two", two.port)]
        async with leaf(servers, timeouts=Timeouts(first_byte_s=0.2)) as live:
            assert code_of(await ask(live)) == (504, "upstream_first_byte_timeout")
            assert len(one.heard) + len(two.heard) == 1
            await live.settled()
