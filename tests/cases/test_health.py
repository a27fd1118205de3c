"""Cases 20 to 32: who is taken for ill and who is not, what is tried again, and when to say no at once."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from dlbctl.core.health import Standing
from dlbctl.core.settings import EndpointSettings, HealthSettings, RetrySettings, Timeouts
from tests.cases.scene import OK, ask, clients_of, code_of, servers_of
from tests.router.live import allow_files, client_of, leaf, on_loop, server, until
from tests.router.scripted import Connection, Held, answering, refusing_port, serving, sized
from tests.router.site import both, site
from tests.router.test_admin import admin_of
from tests.router.test_discovery import discovering, learning, models
from tests.router.wire import Client, chat, post

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


BUSY = b"503 Service Unavailable"


@pytest.mark.parametrize("status", [b"429 Too Many Requests", BUSY])
@on_loop
async def test_case_21_a_full_queue_is_no_ill_health(status: bytes) -> None:
    """One server declines every request: each is done by the other, and the first is not taken for ill. smg!2163."""
    async with serving(answering(sized(b"{}", status=status))) as full, serving(answering(OK)) as engine:
        servers = [server("full", full.port), server("s", engine.port)]
        async with leaf(servers, health=HealthSettings(failures=2)) as live, client_of(live) as client:
            declined = 0
            while declined < 4:  # twice what would eject a server that fails
                assert servers_of([await client.ask(chat())]) == {b"s": 1}
                declined = len(full.heard)
            standing = live.tier.targets["full"].health.standing
            assert (live.tier.targets["full"].up, standing) == (True, Standing.IN)
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


@pytest.mark.parametrize("status", [BUSY, b"500 Oops"])
@on_loop
async def test_case_24_a_retry_never_goes_back_to_who_just_failed(status: bytes) -> None:
    """Three servers decline or fail: each is asked once, and then the client is told. skypilot!3916."""
    script = answering(sized(b"{}", status=status))
    async with serving(script) as one, serving(script) as two, serving(script) as three:
        engines = (one, two, three)
        servers = [server(f"s{n}", engine.port) for n, engine in enumerate(engines)]
        async with leaf(servers, retries=RetrySettings(attempts=9, after_sent=True)) as live:
            assert (await ask(live)).status == int(status[:3])
            assert [len(engine.heard) for engine in engines] == [1, 1, 1]
            await live.settled()


@pytest.mark.parametrize("status", [b"400 Bad Request", b"401 Unauthorized", b"404 Not Found", b"422 Unprocessable"])
@on_loop
async def test_case_24_what_the_client_did_wrong_is_not_tried_again(status: bytes) -> None:
    """A 4xx other than 429 says nothing of the server: it goes to the client at once. skypilot!3916."""
    script = answering(sized(b"{}", status=status))
    async with serving(script) as one, serving(script) as two:
        servers = [server("one", one.port), server("two", two.port)]
        after_sent = RetrySettings(after_sent=True)
        async with leaf(servers, retries=after_sent) as live:
            assert (await ask(live)).status == int(status[:3])
            assert len(one.heard) + len(two.heard) == 1
            await live.settled()


@on_loop
async def test_case_24_a_server_is_left_alone_for_as_long_as_it_asks() -> None:
    """`Retry-After: 1` with a 503: for a second it is asked nothing, whatever comes. litellm#7669."""
    declining = sized(b"{}", status=BUSY, extra=b"retry-after: 1\r\n")
    async with serving(answering(declining)) as busy, serving(answering(OK)) as engine:
        servers = [server("busy", busy.port), server("s", engine.port)]
        async with leaf(servers) as live, client_of(live) as client:
            asked_s: list[float] = []
            while len(asked_s) < 2:
                assert (await client.ask(chat())).status == 200
                if len(busy.heard) > len(asked_s):
                    asked_s.append(time.monotonic())
            assert asked_s[1] - asked_s[0] > 0.95
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
async def test_case_26_where_everything_is_overloaded_the_answer_is_no_and_at_once() -> None:
    """Every slot is taken: 503 with `Retry-After`, and nobody is made to wait for it. smg!2220."""
    held = Held(b"", OK)
    async with serving(held.script) as one, serving(held.script) as two:
        servers = [server("one", one.port, slots=1), server("two", two.port, slots=1)]
        async with leaf(servers) as live, clients_of(live, 2) as busy:
            for client in busy:
                await client.send(chat())
            await until(lambda: len(one.heard) == len(two.heard) == 1)
            began_s = time.monotonic()
            answers = [await ask(live) for _ in range(20)]
            assert time.monotonic() - began_s < 1.0
            assert {code_of(answer) for answer in answers} == {(503, "all_servers_full")}
            assert {answer.get(b"retry-after") for answer in answers} == {b"1"}
            held.go.set()
            assert [(await client.answer()).status for client in busy] == [200, 200]
            await live.settled()


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


@on_loop
async def test_case_29_the_client_sees_the_last_real_answer() -> None:
    """All attempts end in 5xx: the last of them reaches the client as its server wrote it. haproxy#439."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(serving(answering(sized(b"oops %d" % n, status=b"500 Oops"))))
            for n in range(3)
        ]
        servers = [server(f"s{n}", engine.port) for n, engine in enumerate(engines)]
        live = await stack.enter_async_context(leaf(servers, retries=RetrySettings(after_sent=True)))
        answer = await ask(live)
        assert [len(engine.heard) for engine in engines] == [1, 1, 1]
        last = answer.get(b"x-dlb-server")
        assert last is not None
        assert (answer.status, answer.reason, answer.whole) == (500, b"Oops", True)
        assert answer.body == last.replace(b"s", b"oops ")
        await live.settled()


@on_loop
async def test_case_30_retries_stay_inside_their_budget() -> None:
    """A thousand requests fail at the same moment: no more than a fifth is sent again at once. envoy#30205."""
    number = 1000
    first, second = asyncio.Event(), asyncio.Event()
    asked = 0

    async def script(connection: Connection) -> None:
        nonlocal asked
        while True:
            await connection.hear()
            asked += 1
            await (first if asked <= number else second).wait()
            await connection.send(sized(b"{}", status=b"500 Oops"))

    allow_files(6 * number)
    async with serving(script) as one, serving(script) as two:
        servers = [server("one", one.port), server("two", two.port)]
        retries = RetrySettings(after_sent=True, attempts=2)
        async with leaf(servers, retries=retries) as live, clients_of(live, number) as clients:
            for client in clients:
                await client.send(chat())
            await until(lambda: asked == number)
            first.set()
            answers = [asyncio.ensure_future(client.answer()) for client in clients]
            await until(lambda: sum(answer.done() for answer in answers) + live.tier.endpoints["m"].retrying == number)
            await until(lambda: asked == number + live.tier.endpoints["m"].retrying)
            assert 3 <= asked - number <= number // 5
            second.set()
            assert {answer.status for answer in await asyncio.gather(*answers)} == {500}
            await live.settled()


@pytest.mark.parametrize("status", [BUSY, b"500 Oops"])
@on_loop
async def test_case_31_a_server_that_fails_fast_is_no_sink(status: bytes) -> None:
    """One answers 5xx in a millisecond, so it always looks idle: its share falls all the same. linkerd2-proxy#4537."""

    async def working(connection: Connection) -> None:
        while True:
            await connection.hear()
            await asyncio.sleep(0.005)
            await connection.send(OK)

    async with serving(answering(sized(b"{}", status=status))) as failing, serving(working) as engine:
        servers = [server("failing", failing.port), server("s", engine.port)]
        async with leaf(servers) as live, clients_of(live, 8) as clients:

            async def keep_asking(client: Client) -> list[int]:
                return [(await client.ask(chat())).status for _ in range(50)]

            statuses = [status for each in await asyncio.gather(*map(keep_asking, clients)) for status in each]
            assert len(failing.heard) < 0.1 * len(statuses)
            assert statuses.count(200) > 0.95 * len(statuses)
            await live.settled()


@on_loop
async def test_case_32_when_all_are_ejected_all_are_used_and_that_is_said() -> None:
    """Every server has failed too often: rather than serve nobody the leaf panics, and shows it. envoy#2671."""
    well = False

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await connection.send(OK if well else sized(b"{}", status=b"500 Oops"))

    async with serving(script) as one, serving(script) as two:
        servers = [server("one", one.port), server("two", two.port)]
        health = HealthSettings(failures=1, max_ejected=1.0, eject_s=60.0)
        async with leaf(servers, health=health) as live, admin_of(live) as asked, client_of(live) as client:
            assert [row["panic"] for row in await asked.get("endpoints")] == [False]
            assert {(await client.ask(chat())).status for _ in range(4)} == {500}
            assert {target.health.standing for target in live.tier.targets.values()} == {Standing.OUT}
            assert [row["panic"] for row in await asked.get("endpoints")] == [True]
            assert 'dlbctl_panic{cell="c1",endpoint="m",tier="leaf"} 1.0' in (await asked.client.get("/metrics")).text
            assert live.router.routable()
            well = True
            assert {(await client.ask(chat())).status for _ in range(20)} == {200}
            await live.settled()
