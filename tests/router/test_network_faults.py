"""A bad network between routers and servers: what the client sees is right, and nothing stays counted or open.

Each fault is tried on a root that serves the cell itself and on a root with a leaf behind it; the relay that makes
the fault stands in front of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from dlbctl.core.settings import Timeouts
from tests.fault_relay import relayed

from .live import allow_files, client_of, leaf, mark_up, on_loop, server, until
from .scripted import Connection, Held, answering, chunk, once, serving, sized
from .site import both, site
from .test_peers import cell, probing
from .wire import Answer, Client, chat

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = (b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n")
STREAM = STREAM_HEAD + b"".join(chunk(event) for event in EVENTS) + b"0\r\n\r\n"


def code_of(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["code"]


# -- connections that are refused, cut and reset -----------------------------------------------------------


@both
@on_loop
async def test_a_server_that_refuses_is_a_502_and_then_a_503(shape: str) -> None:
    async with site(shape, answering(STREAM)) as made:
        made.relay.refuse()
        assert code_of(await made.ask()) == (502, "upstream_unreachable")
        await made.left()
        await until(lambda: not made.front.tier.routable())
        answer = await made.ask()
        assert (answer.status, answer.get(b"retry-after")) == (503, b"1")
        await made.left()
        assert made.engine.heard == []


@both
@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("passed", [0, 60])
@on_loop
async def test_a_connection_that_dies_under_the_request_is_a_502(shape: str, then: str, passed: int) -> None:
    async with site(shape, answering(STREAM)) as made:
        made.relay.up.stop_after, made.relay.up.then = passed, "reset" if then == "reset" else "close"
        assert code_of(await made.ask()) == (502, "upstream_closed")
        await made.left()
        assert made.engine.heard == [], "it was written, so it is not sent again"


@on_loop
async def test_a_request_that_was_written_goes_to_no_other_server() -> None:
    """It may have been acted on, whatever became of its connection."""
    async with serving(answering(STREAM)) as engine, relayed(engine.port) as one, relayed(engine.port) as two:
        for relay in (one, two):
            relay.down.stop_after, relay.down.then = 0, "reset"
        async with leaf([server("one", one.port), server("two", two.port)]) as live, client_of(live) as client:
            assert code_of(await client.ask(chat())) == (502, "upstream_closed")
            await live.settled()
        assert len(engine.heard) == 1


@both
@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("passed", [0, 20])
@on_loop
async def test_a_connection_that_dies_before_the_head_is_whole_is_a_502(shape: str, then: str, passed: int) -> None:
    async with site(shape, answering(STREAM)) as made:
        made.relay.down.stop_after, made.relay.down.then = passed, "reset" if then == "reset" else "close"
        assert code_of(await made.ask()) == (502, "upstream_closed")
        await made.left()
        assert len(made.engine.heard) == 1


FIRST = len(STREAM_HEAD + chunk(EVENTS[0]))


@both
@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "passed",
    [
        pytest.param(len(STREAM_HEAD), id="no chunk"),
        pytest.param(FIRST, id="a whole chunk"),
        pytest.param(FIRST + 2, id="a chunk's size"),
        pytest.param(FIRST + 8, id="half a chunk"),
        pytest.param(len(STREAM) - 5, id="all but the last chunk"),
        pytest.param(len(STREAM) - 2, id="all but the last line"),
    ],
)
@on_loop
async def test_a_stream_that_dies_is_truncated_and_never_ends_cleanly(shape: str, then: str, passed: int) -> None:
    async with site(shape, answering(STREAM)) as made:
        made.relay.down.stop_after, made.relay.down.then = passed, "reset" if then == "reset" else "close"
        answer = await made.ask()
        assert (answer.status, answer.whole) == (200, False)
        assert b"".join(EVENTS).startswith(answer.body)
        if then == "close":  # a reset may overtake what came before it
            assert len(answer.body) >= len(EVENTS[0]) * (passed >= FIRST)
        await made.left()


@both
@on_loop
async def test_a_server_that_crashes_truncates_every_stream_and_is_used_again_once_it_is_back(shape: str) -> None:
    streaming = held_stream()
    async with site(shape, streaming.script) as made, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(made.front)) for _ in range(20)]
        for client in clients:
            await begin(client)
        made.relay.crash()
        for client in clients:
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await made.left()
        assert (await made.ask()).status in {502, 503}
        await made.left()
        await made.relay.listen()
        for tier in made.last.tiers:
            mark_up(tier)
        await until(made.front.router.routable)
        streaming.go.set()
        assert (await made.ask()).whole
        await made.settled()


def held_stream() -> Held:
    return Held(STREAM_HEAD + chunk(EVENTS[0]), chunk(EVENTS[2]) + b"0\r\n\r\n")


async def begin(client: Client) -> None:
    """Ask, and wait for the first event."""
    await client.send(chat())
    await client.reader.readuntil(EVENTS[0])


# -- connections that hang ---------------------------------------------------------------------------------

SOON = Timeouts(first_byte_s=0.2, idle_s=0.2)


@both
@pytest.mark.parametrize(
    ("way", "passed"),
    [
        pytest.param("up", 0, id="the request is swallowed"),
        pytest.param("up", 60, id="half the request is swallowed"),
        pytest.param("down", 0, id="before the head"),
        pytest.param("down", 20, id="in the head"),
    ],
)
@on_loop
async def test_a_server_that_hangs_before_its_head_is_a_504(shape: str, way: str, passed: int) -> None:
    async with site(shape, answering(STREAM), SOON) as made:
        faulty = made.relay.up if way == "up" else made.relay.down
        faulty.stop_after, faulty.then = passed, "stall"
        assert code_of(await made.ask()) == (504, "upstream_first_byte_timeout")
        await made.left()


@both
@pytest.mark.parametrize("passed", [len(STREAM_HEAD), FIRST, FIRST + 8, len(STREAM) - 2])
@on_loop
async def test_a_server_that_hangs_after_its_head_is_cut(shape: str, passed: int) -> None:
    async with site(shape, answering(STREAM), SOON) as made:
        made.relay.down.stop_after, made.relay.down.then = passed, "stall"
        answer = await made.ask()
        assert (answer.status, answer.whole) == (200, False)
        assert b"".join(EVENTS).startswith(answer.body)
        assert len(answer.body) >= len(EVENTS[0]) * (passed >= FIRST)
        await made.left()


# -- lengths that are wrong --------------------------------------------------------------------------------


@both
@on_loop
async def test_a_body_longer_than_its_length_is_passed_on_up_to_it(shape: str) -> None:
    async with site(shape, answering(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwhole and more")) as made:
        for _ in range(3):
            answer = await made.ask()
            assert (answer.status, answer.body, answer.whole) == (200, b"whol", True)
            await made.left()
        assert len(made.engine.connections) == 3, "a connection that is out of step is not used again"


@both
@pytest.mark.parametrize("ends", [True, False])
@on_loop
async def test_a_body_shorter_than_its_length_is_truncated(shape: str, ends: bool) -> None:
    """Whether the server closes after it or stays silent."""
    short = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    async with site(shape, once(short) if ends else answering(short), SOON) as made:
        answer = await made.ask()
        assert (answer.status, answer.get(b"content-length")) == (200, b"100")
        assert (answer.body, answer.whole) == (b"half", False)
        await made.left()


# -- servers that close what is idle -----------------------------------------------------------------------


class Impatient:
    """A server that keeps an idle connection open for a moment only. closed: how many it gave up."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self.closed = 0

    async def script(self, connection: Connection) -> None:
        while True:
            try:
                async with asyncio.timeout(self.idle_s):
                    await connection.hear()
            except TimeoutError:
                break
            await connection.send(STREAM)
        await connection.close()
        self.closed += 1


@both
@pytest.mark.parametrize("close_delay_s", [0.0, 0.1])
@on_loop
async def test_a_server_that_closes_idle_connections_costs_no_request(shape: str, close_delay_s: float) -> None:
    """With a delay the router learns of the close only after it has sent the next request there."""
    impatient = Impatient(0.02)
    async with site(shape, impatient.script) as made:
        made.relay.down.close_delay_s = close_delay_s
        for turn in range(1, 6):
            answer = await made.ask()
            assert (answer.status, answer.body, answer.whole) == (200, b"".join(EVENTS), True)
            await until(lambda turn=turn: impatient.closed >= turn)  # type: ignore[misc]
        assert len(made.engine.heard) == 5
        await made.left()


@both
@on_loop
async def test_a_server_that_closes_after_every_stream_costs_no_request(shape: str) -> None:
    """Unannounced: its answers do not say `connection: close`."""
    async with site(shape, once(STREAM)) as made:
        made.relay.down.close_delay_s = 0.001

        async def stream(client: Client) -> list[tuple[int, bool]]:
            answers = [await client.ask(chat()) for _ in range(10)]
            return [(answer.status, answer.whole) for answer in answers]

        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client_of(made.front)) for _ in range(8)]
            seen = await asyncio.gather(*map(stream, clients))
        assert seen == [[(200, True)] * 10] * 8
        await made.left()


# -- slow networks -----------------------------------------------------------------------------------------


@both
@on_loop
async def test_whatever_the_pieces_the_bytes_are_the_same(shape: str) -> None:
    async with site(shape, answering(STREAM)) as made:
        made.relay.up.slice_bytes = made.relay.down.slice_bytes = 1
        for _ in range(3):
            answer = await made.ask()
            assert (answer.body, answer.whole) == (b"".join(EVENTS), True)
        assert [heard.body for heard in made.engine.heard] == [chat().partition(b"\r\n\r\n")[2]] * 3
        assert len(made.engine.connections) == 1
        await made.settled()


@both
@on_loop
async def test_a_slow_network_that_never_falls_silent_is_waited_for(shape: str) -> None:
    """The whole takes several times each limit."""
    async with site(shape, answering(sized(b"x" * 1000)), SOON) as made:
        made.relay.down.latency_s, made.relay.down.slice_bytes, made.relay.down.bytes_per_s = 0.05, 50, 1000.0
        answer = await made.ask()
        assert (answer.body, answer.whole) == (b"x" * 1000, True)
        await made.settled()


@both
@on_loop
async def test_an_answer_that_ends_with_its_connection_is_whole_however_late_the_end(shape: str) -> None:
    async with site(shape, once(b"HTTP/1.1 200 OK\r\n\r\nwhole"), SOON) as made:
        made.relay.down.close_delay_s = 0.1
        answer = await made.ask()
        assert (answer.body, answer.whole) == (b"whole", True)
        await made.left()


# -- cancellations -----------------------------------------------------------------------------------------

MANY = 1000


@both
@pytest.mark.parametrize("begun", [False, True])
@on_loop
async def test_a_thousand_clients_leave_at_the_same_moment(shape: str, begun: bool) -> None:
    """Before the head as well as in mid-stream; the next one is served."""
    allow_files(10 * MANY)
    held = held_stream() if begun else Held(b"", STREAM)
    async with site(shape, held.script) as made:
        clients = [await Client.connect(made.front.port) for _ in range(MANY)]
        for client in clients:
            await client.send(chat())
        if begun:
            for client in clients:
                await client.reader.readuntil(EVENTS[0])
        await until(lambda: len(made.engine.heard) == MANY)
        assert sum(target.in_flight for target in made.front.tier.targets.values()) == MANY
        for client in clients:
            client.abort()
        await made.left()
        assert not made.front.connections
        held.go.set()
        assert (await made.ask()).whole
        await made.settled()


# -- between root and leaf ---------------------------------------------------------------------------------


@on_loop
async def test_a_stream_that_is_cut_between_root_and_leaf_is_truncated_and_its_server_told() -> None:
    held = held_stream()
    async with (
        serving(held.script) as engine,
        leaf([server("s", engine.port)], cell="eu") as behind,
        relayed(behind.peer_port) as relay,
        probing([cell("eu", relay.port)]) as front,
        client_of(front) as client,
    ):
        await until(front.router.routable)
        await begin(client)
        relay.crash()
        assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await front.settled()
        await behind.settled()
        await until(lambda: engine.connections[0].gone, "its client is gone, so the server's connection is closed")


@on_loop
async def test_a_cell_that_falls_into_a_black_hole_is_left_and_comes_back() -> None:
    """Nothing is refused or reset: its state stream falls silent, and that alone tells."""
    limits = Timeouts(first_byte_s=0.3)
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("e", engine.port)], cell="eu") as eu,
        leaf([server("u", engine.port)], cell="us") as us,
        relayed(eu.peer_port) as relay,
        probing([cell("eu", relay.port), cell("us", us.peer_port)], timeouts=limits) as front,
    ):
        targets = front.tier.targets
        await until(lambda: targets["eu"].up and targets["us"].up)
        relay.down.stop_after, relay.down.then = 0, "stall"
        while targets["eu"].up:
            async with client_of(front) as client:
                answer = await client.ask(chat())
                assert answer.status in {200, 504}
        for _ in range(20):
            async with client_of(front) as client:
                assert (await client.ask(chat())).get(b"x-dlb-cell") == b"us"
        await front.settled()
        await eu.settled()
        relay.down.stop_after = None
        relay.reset()
        await until(lambda: targets["eu"].up)
        await front.settled()
