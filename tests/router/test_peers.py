"""Root and leaf over their peer listener: who is let in, what each learns, how one outlives the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from dlbctl.core.settings import TargetSettings, Timeouts
from dlbctl.router.leaf_faults import OTHER_TOKEN
from dlbctl.router.probe import Prober

from .live import Live, client_of, leaf, on_loop, root, server, until
from .scripted import Connection, answering, chunk, full_backlog, serving, sized
from .wire import Client, chat, get, post

INTERVAL_MS = 10.0
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def cell(name: str, *ports: int) -> TargetSettings:
    return TargetSettings(name, tuple(f"http://127.0.0.1:{port}" for port in ports))


@contextlib.asynccontextmanager
async def probing(
    cells: Sequence[TargetSettings], token: bytes = b"", timeouts: Timeouts | None = None
) -> AsyncIterator[Live]:
    """A root that probes its cells."""
    async with root(cells, token=token, timeouts=timeouts) as live:
        task = asyncio.ensure_future(Prober(live.router, INTERVAL_MS).run())
        try:
            yield live
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def up(live: Live, name: str) -> bool:
    return live.tier.targets[name].up


@contextlib.asynccontextmanager
async def peer_client(live: Live) -> AsyncIterator[Client]:
    client = await Client.connect(live.peer_port)
    try:
        yield client
    finally:
        client.abort()


# -- who is let in -----------------------------------------------------------------------------------------


@on_loop
async def test_a_request_travels_from_root_to_leaf_to_server() -> None:
    async with (
        serving(answering(sized(b'{"ok":1}'))) as engine,
        leaf([server("s", engine.port)], cell="eu", token=b"k") as eu,
        probing([cell("eu", eu.peer_port)], token=b"k") as live,
        client_of(live) as client,
    ):
        await until(lambda: live.router.routable())
        answer = await client.ask(post(b'{"model":"m"}', extra=b"X-Request-Id: r1\r\nX-Forwarded-For: 9.9.9.9\r\n"))
        assert (answer.status, answer.body) == (200, b'{"ok":1}')
        assert (answer.get(b"x-dlb-cell"), answer.get(b"x-dlb-server")) == (b"eu", b"s")
        assert answer.all(b"x-request-id") == [b"r1"]
        assert [name for name, _ in answer.fields if name.startswith(b"dlb-")] == []
        heard = engine.heard[-1]
        assert heard.body == b'{"model":"m"}'
        assert heard.all(b"x-request-id") == [b"r1"]
        assert heard.get(b"x-forwarded-for") == b"9.9.9.9, 127.0.0.1, 127.0.0.1"
        assert [name for name, _ in heard.fields if name.startswith(b"dlb-")] == []
        await live.settled()
        await eu.settled()


@pytest.mark.parametrize("token", [b"", b"wrong"])
@on_loop
async def test_a_root_with_another_token_is_refused_and_never_routes(
    token: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        leaf([server("s", 1)], cell="eu", token=b"k") as eu,
        probing([cell("eu", eu.peer_port)], token=token) as live,
        client_of(live) as client,
    ):
        await until(lambda: "its peer token is another one" in caplog.text)
        assert not up(live, "eu")
        assert (await client.ask(get("/readyz"))).status == 503
        assert (await client.ask(chat())).status in {404, 503}
        # The stream's and the ping's, while one of each is tried: refusals do not pile up connections or words.
        await until(lambda: eu.router._requests > 12)
        assert len(eu.connections) <= 3
        assert caplog.text.count("its peer token is another one") == 1


@pytest.mark.parametrize("changed", ["leaf", "root"])
@on_loop
async def test_a_token_changed_at_one_end_costs_no_request_and_takes_the_leaf_out(changed: str) -> None:
    """Its stream was let in before; a client must not be told 401 for what operators have to mend."""
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)], cell="eu", token=b"k") as eu,
        leaf([server("s", engine.port)], cell="us", token=b"k") as us,
        probing([cell("eu", eu.peer_port), cell("us", us.peer_port)], token=b"k") as live,
        client_of(live) as client,
    ):
        await until(lambda: up(live, "eu") and up(live, "us"))
        if changed == "leaf":
            eu.router.token = b"new"
        else:
            live.router.token = us.router.token = b"new"
        address = live.tier.targets["eu"].addresses[0]
        while live.router.leaf_faults.of(address) != OTHER_TOKEN:
            answer = await client.ask(chat())
            assert (answer.status, answer.get(b"x-dlb-cell")) == (200, b"us")
        assert not up(live, "eu")
        live.router.token = eu.router.token = us.router.token
        await until(lambda: up(live, "eu"))
        await live.settled()


@on_loop
async def test_a_server_that_answers_401_is_heard_and_a_leaf_that_does_is_unreachable() -> None:
    refusal = sized(b'{"error":"no key"}', status=b"401 Unauthorized")
    async with (
        serving(answering(refusal)) as engine,
        leaf([server("s", engine.port)], cell="eu", token=b"k") as eu,
        probing([cell("eu", eu.peer_port)], token=b"k") as live,
        client_of(live) as client,
    ):
        await until(lambda: up(live, "eu"))
        answer = await client.ask(chat())
        assert (answer.status, answer.body) == (401, b'{"error":"no key"}')
        eu.router.token = b"new"
        answer = await client.ask(chat())
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_unreachable")
        assert not up(live, "eu")
        await live.settled()


@on_loop
async def test_a_leaf_of_another_cell_is_not_routed_to_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(answering(sized(b"{}"))) as engine, contextlib.AsyncExitStack() as stack:
        wrong = contextlib.AsyncExitStack()
        us = await wrong.enter_async_context(leaf([server("s", engine.port)], cell="us"))
        live = await stack.enter_async_context(probing([cell("eu", us.peer_port)]))
        client = await stack.enter_async_context(client_of(live))
        address = live.tier.targets["eu"].addresses[0]
        for _ in range(3):
            await until(lambda: bool(us.connections))
            await until(lambda: live.router.leaf_faults.of(address) == "says that it serves the cell 'us'")
            for connection in list(us.connections):
                connection.transport.abort()
        assert not up(live, "eu")
        assert (await client.ask(chat())).status == 503
        assert caplog.text.count(f"leaf {address} of cell eu says that it serves the cell 'us'") == 1
        await wrong.aclose()
        await until(lambda: live.router.leaf_faults.of(address) == "does not answer")
        await stack.enter_async_context(leaf([server("s", engine.port)], cell="eu", peer_port=us.peer_port))
        await until(lambda: up(live, "eu"))
        assert live.router.leaf_faults.of(address) == ""
        assert (await client.ask(chat())).status == 200


@on_loop
async def test_a_leaf_that_does_not_tell_its_cell_is_believed_to_be_of_the_one_it_is_listed_under() -> None:
    """As the version before does not."""
    line = b'{"boot":"b","seq":1,"endpoints":{"m":{"k":1.0}}}\n'

    async def script(connection: Connection) -> None:
        while True:
            if b"ping" in (await connection.hear()).url:
                await connection.send(sized(b"pong\n"))
            else:
                await connection.send(STREAM_HEAD)
                while True:
                    await connection.send(chunk(line))
                    await asyncio.sleep(0.01)

    async with serving(script) as old, probing([cell("eu", old.port)]) as live:
        await until(lambda: up(live, "eu"))


@pytest.mark.parametrize("path", ["/v1/models", "/livez", "/dlb/v1/ping", "/dlb/v1/state", "/v1/chat/completions"])
@pytest.mark.parametrize("shown", [b"", b"dlb-token: wrong\r\n", b"dlb-token:\r\n"])
@on_loop
async def test_a_stranger_gets_nothing_but_401(path: str, shown: bytes) -> None:
    async with leaf([server("s", 1)], token=b"k") as eu, peer_client(eu) as client:
        answer = await client.ask(get(path, shown))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (401, "not_a_peer")


@on_loop
async def test_what_a_root_says_of_a_request_is_believed_from_a_peer_alone() -> None:
    said = b"dlb-endpoint: m\r\ndlb-tokens: 5\r\ndlb-output-tokens: 7\r\ndlb-root: r1\r\ndlb-token: k\r\n"
    body = b'{"model":"another name altogether"}'
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)], token=b"k") as eu:
        async with peer_client(eu) as peer:
            answer = await peer.ask(post(body, extra=said))
            assert answer.status == 200
            assert (answer.get(b"dlb-cell"), answer.get(b"dlb-server")) == (b"c1", b"s")
            assert answer.get(b"x-dlb-cell") is None
        async with client_of(eu) as stranger:
            assert (await stranger.ask(post(body, extra=said))).status == 404
        assert eu.tier.endpoints["m"].received == {"r1": 1}
        assert len(engine.heard) == 1


@pytest.mark.parametrize("number", [b"nan", b"inf", b"-inf", b"-1", b"1e400", b"", b"many"])
@on_loop
async def test_numbers_of_a_peer_that_are_none_do_no_harm(number: bytes) -> None:
    said = b"dlb-endpoint: m\r\ndlb-tokens: %b\r\ndlb-output-tokens: %b\r\n" % (number, number)
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as eu:
        async with peer_client(eu) as peer:
            assert (await peer.ask(post(b"{}", extra=said))).status == 200
        await eu.settled()


# -- what a root learns --------------------------------------------------------------------------------------


@on_loop
async def test_one_line_of_state_is_there_for_curl() -> None:
    async with leaf([server("s", 1, "m", "n")]) as eu, peer_client(eu) as client:
        answer = await client.ask(get("/dlb/v1/state"))
        state = json.loads(answer.body)
        assert (answer.status, state["boot"]) == (200, "boot-c1")
        assert {name: endpoint["k"] for name, endpoint in state["endpoints"].items()} == {"m": 1.0, "n": 1.0}


@pytest.mark.parametrize("interval", ["2", "nan", "inf", "-5", "x"])
@on_loop
async def test_a_stream_of_states_comes_whatever_interval_is_asked(interval: str) -> None:
    async with leaf([server("s", 1)]) as eu, peer_client(eu) as first, peer_client(eu) as second:
        await first.send(get("/dlb/v1/state?interval=5"))
        await first.reader.readuntil(b"}\n\r\n")
        await second.send(get(f"/dlb/v1/state?interval={interval}"))
        for _ in range(3):
            await first.reader.readuntil(b"}\n\r\n")
        await second.reader.readuntil(b"}\n\r\n")


@on_loop
async def test_a_leaf_echoes_how_many_requests_it_has_received() -> None:
    """The stale-state correction: what is on its way is what was sent less what was received."""
    gate = asyncio.Event()

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await gate.wait()
            await connection.send(sized(b"{}"))

    async with (
        serving(script) as engine,
        leaf([server("s", engine.port)], cell="eu") as eu,
        probing([cell("eu", eu.peer_port)]) as live,
    ):
        await until(lambda: live.router.routable())
        clients = [await live.client() for _ in range(3)]
        asking = [asyncio.ensure_future(client.ask(chat())) for client in clients]
        await until(lambda: len(engine.heard) == 3)
        candidate = live.tier.endpoints["m"].candidates["eu"]
        address = live.tier.targets["eu"].addresses[0]
        await until(lambda: candidate.reports[address].received == {"boot-root": 3})
        candidate.measure()
        assert (candidate.in_flight, candidate.load) == (3, 3.0), "counted once, here or there"
        gate.set()
        assert [answer.status for answer in await asyncio.gather(*asking)] == [200] * 3
        await until(lambda: candidate.reports[address].rif == 0)
        candidate.measure()
        assert candidate.load == 0.0
        for client in clients:
            client.abort()
        await live.settled()


DELAY_S = 0.03


@contextlib.asynccontextmanager
async def far_away(port: int) -> AsyncIterator[int]:
    """A port from which every byte takes DELAY_S longer in each direction."""
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                loop.call_later(DELAY_S, writer.write, data)
        loop.call_later(2 * DELAY_S, writer.close)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for task in (
            asyncio.ensure_future(carry(reader, far_writer)),
            asyncio.ensure_future(carry(far_reader, writer)),
        ):
            tasks.add(task)

    relay = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield relay.sockets[0].getsockname()[1]
    finally:
        relay.close()
        await asyncio.gather(*tasks)
        await asyncio.sleep(4 * DELAY_S)  # what is still on its way arrives


@on_loop
async def test_the_distance_to_a_cell_is_half_the_round_trip() -> None:
    async with (
        leaf([server("s", 1)], cell="near") as near,
        leaf([server("s", 1)], cell="far") as far,
        far_away(far.peer_port) as port,
        probing([cell("near", near.peer_port), cell("far", port)]) as live,
    ):
        await until(lambda: up(live, "near") and up(live, "far"))
        assert live.tier.targets["near"].tau_s < DELAY_S / 3
        assert DELAY_S * 0.9 < live.tier.targets["far"].tau_s < DELAY_S * 2
        assert live.tier.endpoints["m"].candidates["far"].tau_s == live.tier.targets["far"].tau_s
        live.router.close()
        for connection in list(far.connections):
            connection.transport.abort()


# -- death and return ------------------------------------------------------------------------------------------


@on_loop
async def test_a_root_leaves_a_dead_leaf_and_comes_back_to_it_by_itself() -> None:
    async with serving(answering(sized(b"{}"))) as engine, contextlib.AsyncExitStack() as stack:
        us = await stack.enter_async_context(leaf([server("u", engine.port)], cell="us"))
        eu_life = contextlib.AsyncExitStack()
        eu = await eu_life.enter_async_context(leaf([server("e", engine.port)], cell="eu"))
        cells = [cell("us", us.peer_port), cell("eu", eu.peer_port)]
        live = await stack.enter_async_context(probing(cells))
        client = await stack.enter_async_context(client_of(live))
        await until(lambda: up(live, "us") and up(live, "eu"))

        await eu_life.aclose()
        for _ in range(4):  # at once, before any probe has missed it
            assert (await client.ask(chat())).get(b"x-dlb-cell") == b"us"
        await until(lambda: not up(live, "eu"))
        assert (await client.ask(get("/readyz"))).status == 200

        await stack.enter_async_context(leaf([server("e", engine.port)], cell="eu", peer_port=eu.peer_port))
        await until(lambda: up(live, "eu"))
        seen: set[bytes | None] = set()
        while seen != {b"us", b"eu"}:
            answer = await client.ask(chat())
            assert answer.status == 200
            seen.add(answer.get(b"x-dlb-cell"))
        await live.settled()


@on_loop
async def test_a_cell_lives_as_long_as_one_of_its_leaves_does() -> None:
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)], cell="eu") as one:
        second = contextlib.AsyncExitStack()
        two = await second.enter_async_context(leaf([server("s", engine.port)], cell="eu"))
        async with probing([cell("eu", one.peer_port, two.peer_port)]) as live, client_of(live) as client:
            await until(lambda: not live.tier.targets["eu"].down)
            await second.aclose()
            for _ in range(6):
                assert (await client.ask(chat())).status == 200
            await until(lambda: len(live.tier.targets["eu"].down) == 1)
            assert (await client.ask(chat())).status == 200
            await live.settled()


@on_loop
async def test_a_cell_whose_servers_are_all_down_is_not_chosen() -> None:
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)], cell="us") as us,
        leaf([server("s", 1)], cell="eu") as eu,
    ):
        cells = [cell("us", us.peer_port), cell("eu", eu.peer_port)]
        async with probing(cells) as live, client_of(live) as client:
            await until(lambda: up(live, "us") and up(live, "eu"))
            eu.tier.address_changed(0.0, "s", "http://127.0.0.1:1", False)
            await until(lambda: live.tier.endpoints["m"].candidates["eu"].k == 0.0)
            for _ in range(6):
                assert (await client.ask(chat())).get(b"x-dlb-cell") == b"us"
            await live.settled()


@on_loop
async def test_a_root_that_stops_probing_leaves_no_connection_behind() -> None:
    async with leaf([server("s", 1)], cell="eu") as eu, full_backlog() as stuck:
        for turns in (*range(12), 100, 1000):  # while connecting as well as later
            async with probing([cell("eu", eu.peer_port), cell("stuck", stuck)]):
                for _ in range(turns):
                    await asyncio.sleep(0)
        await until(lambda: not eu.connections)


@on_loop
async def test_a_leaf_is_told_by_its_root_what_is_asked_for_anywhere() -> None:
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)]) as eu,
        probing([cell("c1", eu.peer_port)]) as us,
        client_of(us) as client,
    ):
        await until(us.router.routable)
        for _ in range(5):
            assert (await client.ask(chat("m"))).status == 200
        await until(lambda: eu.tier.heard.rate_rps(eu.router.clock(), "m") > 0.0, "news have come")
        assert eu.tier.distances.read(eu.router.clock()).keys() == {"here"}


@pytest.mark.parametrize("request_", [b"GET", b"POST"], ids=["a root of the version before", "one of the next"])
@on_loop
async def test_a_ping_is_answered_whatever_its_news(request_: bytes) -> None:
    """A root of the version before sends none; what cannot be read is none."""
    body = b"" if request_ == b"GET" else b'{"endpoints":"other"}'
    head = b"%b /dlb/v1/ping HTTP/1.1\r\nhost: x\r\ndlb-source: us\r\ndlb-rtt-us: 20000\r\n" % request_
    async with leaf([server("s", 1)]) as eu, peer_client(eu) as peer:
        assert (await peer.ask(head + b"content-length: %d\r\n\r\n" % len(body) + body)).status == 200
        assert eu.tier.distances.read(eu.router.clock()) == {"us": 0.01}
