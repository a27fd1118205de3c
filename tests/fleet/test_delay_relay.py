"""The delay relay on real sockets: never early, in order, unchanged, bounded, ends and resets in place."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.errors import UnreachableError, UsageError
from dlbctl.fleet.delay_line import WINDOW_BYTES
from dlbctl.fleet.delay_relay import Link, LinkSettings
from dlbctl.fleet.relay_control import send_command, serve_control

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
DELAY_S = 0.010
ROUND_TRIP_S = 2 * DELAY_S


@asynccontextmanager
async def relayed(serve: Serve, *, delay_ms: float = DELAY_S * 1e3, jitter_ms: float = 0) -> AsyncIterator[Site]:
    """A server behind a link."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, behind_link(port_of(server), delay_ms, jitter_ms) as site:
        yield site


@asynccontextmanager
async def behind_link(target: int, delay_ms: float, jitter_ms: float = 0) -> AsyncIterator[Site]:
    link = Link(
        LinkSettings(
            source="here",
            destination="there",
            target=f"127.0.0.1:{target}",
            delay_ms=delay_ms,
            back_ms=delay_ms,
            jitter_ms=jitter_ms,
        )
    )
    listener, _ = await link.listen()
    async with listener:
        yield Site(link, port_of(listener))
        for connection in tuple(link.connections):
            connection.finish()


class Site:
    """A link, and clients that go through it."""

    def __init__(self, link: Link, port: int) -> None:
        self.link = link
        self.port = port

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def reset_on_close(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def ping_s(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Seconds from a byte sent to its echo."""
    sent_s = monotonic()
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    return monotonic() - sent_s


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # other sockets' progress has no event
            await asyncio.sleep(0.002)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test

    uvloop.run(bounded())


@pytest.mark.parametrize("delay_ms", [3.0, 20.0, 48.0])
def test_an_open_connection_pays_one_round_trip_and_a_byte_is_never_early(delay_ms: float) -> None:
    async def check() -> None:
        async with relayed(echo, delay_ms=delay_ms) as site, site.client() as (reader, writer):
            await ping_s(reader, writer)
            pings_s = [await ping_s(reader, writer) for _ in range(10)]
            assert min(pings_s) >= 2 * delay_ms / 1e3
            # Two timers of 1 ms resolution; the best of ten, because this machine does other things too.
            assert min(pings_s) < 2 * delay_ms / 1e3 + 0.004

    run(check())


def test_no_line_of_a_stream_is_early_however_close_it_follows() -> None:
    async def check() -> None:
        sent_s: list[float] = []
        received_s: list[float] = []

        async def clock(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                received_s.extend([monotonic()] * len(data))
            writer.close()

        async with relayed(clock) as site, site.client() as (reader, writer):
            for _ in range(200):
                sent_s.append(monotonic())
                writer.write(b"x")
                await asyncio.sleep(0.001)
            writer.write_eof()
            assert await reader.read(-1) == b""
        delays_s = [received - sent for sent, received in zip(sent_s, received_s, strict=True)]
        assert min(delays_s) >= DELAY_S
        assert sorted(delays_s[100:])[50] < DELAY_S + 0.006  # the first hundred may still wait for the connect

    run(check())


def test_the_first_byte_of_a_connection_pays_for_the_connect_as_well() -> None:
    async def check() -> None:
        firsts_s = []
        async with relayed(echo) as site:
            for _ in range(5):
                connected_s = monotonic()
                async with site.client() as (reader, writer):
                    await ping_s(reader, writer)
                    firsts_s.append(monotonic() - connected_s)
        assert min(firsts_s) >= 2 * ROUND_TRIP_S
        assert min(firsts_s) < 2 * ROUND_TRIP_S + 0.008

    run(check())


def test_the_directions_have_their_own_delays() -> None:
    async def check() -> None:
        async with relayed(echo) as site, site.client() as (reader, writer):
            site.link.set_delay(there_ms=2, back_ms=30)
            await ping_s(reader, writer)
            best_s = min([await ping_s(reader, writer) for _ in range(5)])
            assert 0.032 <= best_s < 0.038

    run(check())


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=20), st.integers(0, 200_000))
@settings(derandomize=True, deadline=None, max_examples=15)
def test_bytes_come_back_unchanged_and_in_order_under_jitter(chunks: list[bytes], bulk: int) -> None:
    async def check() -> None:
        async with relayed(echo, delay_ms=1, jitter_ms=3) as site, site.client() as (reader, writer):
            sent = b"".join(chunks) + bytes(range(256)) * (bulk // 256)
            for chunk in (*chunks, sent[len(b"".join(chunks)) :]):
                writer.write(chunk)
                await asyncio.sleep(0)  # a write of its own
            writer.write_eof()
            assert await reader.read(-1) == sent

    run(check())


def test_a_shorter_delay_lets_nothing_overtake() -> None:
    async def check() -> None:
        async with relayed(echo, delay_ms=30) as site, site.client() as (reader, writer):
            await ping_s(reader, writer)
            writer.write(b"first ")
            await until(lambda: site.link.report()["buffered_bytes"] > 0)
            site.link.set_delay(0, 0)
            writer.write(b"second")
            assert await reader.readexactly(12) == b"first second"

    run(check())


def test_a_half_closed_connection_still_gets_its_answer() -> None:
    async def answer_at_eof(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"heard " + await reader.read(-1))
        writer.close()

    async def check() -> None:
        async with relayed(answer_at_eof) as site, site.client() as (reader, writer):
            writer.write(b"all of it")
            writer.write_eof()
            assert await reader.read(-1) == b"heard all of it"
            await until(lambda: not site.link.connections)

    run(check())


def test_a_reset_of_the_target_comes_after_its_bytes_and_not_before_its_time() -> None:
    async def speak_and_reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")
        await writer.drain()
        reset_on_close(writer)
        writer.close()

    async def check() -> None:
        async with relayed(speak_and_reset) as site:
            connected_s = monotonic()
            async with site.client() as (reader, _):
                assert await reader.readexactly(10) == b"last words"
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
                assert monotonic() - connected_s >= ROUND_TRIP_S
            assert not site.link.connections

    run(check())


def test_bytes_and_a_reset_that_are_due_together_arrive_in_order() -> None:
    async def check() -> None:
        speak = asyncio.Event()

        async def speak_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(1))
            await speak.wait()
            writer.write(b"last words")
            reset_on_close(writer)
            writer.close()

        async with relayed(speak_and_reset) as site, site.client() as (reader, writer):
            await ping_s(reader, writer)
            site.link.stop()
            speak.set()
            (connection,) = site.link.connections
            await until(lambda: "2 items" in repr(connection._back))
            site.link.resume()
            assert await reader.readexactly(10) == b"last words"
            with pytest.raises(ConnectionResetError):
                await reader.read(1)

    run(check())


def test_a_client_that_resets_is_reset_at_the_target() -> None:
    async def check() -> None:
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readexactly(1)
                await reader.read(1)
                seen.set_result("end")
            except ConnectionResetError:
                seen.set_result("reset")
            writer.close()

        async with relayed(listen) as site:
            async with site.client() as (_, writer):
                writer.write(b"x")
                await until(lambda: site.link.there.carried_bytes == 1)
                reset_on_close(writer)
            assert await seen == "reset"
            await until(lambda: not site.link.connections)

    run(check())


def test_a_target_that_refuses_resets_the_client_a_round_trip_later() -> None:
    async def check() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
            async with behind_link(closed.getsockname()[1], DELAY_S * 1e3) as site:
                connected_s = monotonic()
                async with site.client() as (reader, _):
                    with pytest.raises(ConnectionResetError):
                        await reader.read(1)
                    assert monotonic() - connected_s >= ROUND_TRIP_S
                assert not site.link.connections

    run(check())


def test_a_slow_reader_holds_its_sender_and_the_relay_stays_small() -> None:
    sent = 96 << 20  # several times what the kernel's own buffers on the way may grow to

    async def check() -> None:
        go = asyncio.Event()
        received = 0
        peak = 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received, peak
            await go.wait()
            while data := await reader.read(1 << 16):
                received += len(data)
                peak = max(peak, site.link.report()["buffered_bytes"])
            writer.close()

        async with relayed(slow) as site, site.client() as (reader, writer):
            writer.transport.set_write_buffer_limits(high=1 << 20)
            writer.write(bytes(sent))
            # Nobody reads, so at last nothing moves: the rest stays with the sender.
            stalled = 0
            while stalled < 50:
                left = writer.transport.get_write_buffer_size()
                await asyncio.sleep(0.002)
                stalled = stalled + 1 if writer.transport.get_write_buffer_size() == left < sent else 0
            assert writer.transport.get_write_buffer_size() > sent // 4
            assert site.link.report()["buffered_bytes"] > WINDOW_BYTES
            peak = site.link.report()["buffered_bytes"]
            go.set()
            writer.write_eof()
            assert await reader.read(-1) == b""
        assert received == sent
        # One window on the wire, one handed to a socket that is full, and the read that went past.
        assert peak <= 2 * WINDOW_BYTES + (1 << 19)

    run(check())


def test_a_black_hole_holds_everything_and_lets_it_through_in_order_afterwards() -> None:
    async def check() -> None:
        async with relayed(echo) as site, site.client() as (reader, writer):
            await ping_s(reader, writer)
            site.link.stop()
            writer.write(b"one ")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 5 * ROUND_TRIP_S)
            writer.write(b"two")
            resumed_s = monotonic()
            site.link.resume()
            assert await reader.readexactly(7) == b"one two"
            assert monotonic() - resumed_s >= ROUND_TRIP_S
            assert min([await ping_s(reader, writer) for _ in range(5)]) < ROUND_TRIP_S + 0.005

    run(check())


def test_clients_that_give_up_on_a_black_hole_leave_nothing_behind() -> None:
    async def check() -> None:
        reached = 0

        async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal reached
            reached += 1
            writer.close()

        async with relayed(count) as site:
            site.link.stop()
            for _ in range(5):
                async with site.client() as (_, writer):
                    writer.write(b"hello?")
                    await until(lambda: len(site.link.connections) == 1)
                await until(lambda: not site.link.connections)
            site.link.resume()
            assert reached == 0

    run(check())


def test_commands_change_the_links_they_name(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"

    async def ask(command: str) -> Any:
        return await asyncio.to_thread(send_command, path, command)

    async def check() -> None:
        async with relayed(echo) as site, await serve_control(path, [site.link]):
            assert (await ask("links"))[0]["delay_ms"] == 10
            assert (await ask("delay here there 30 40"))[0]["back_ms"] == 40
            assert (await ask("jitter * * 5"))[0]["jitter_ms"] == 5
            assert (await ask("blackhole * there on"))[0]["blackhole"]
            assert not (await ask("blackhole * there off"))[0]["blackhole"]
            for wrong in (
                "blackhole here nowhere on",
                "delay here there -1",
                "delay here there x",
                "stop",
                "",
            ):
                with pytest.raises(UsageError):
                    await ask(wrong)

    run(check())
    with pytest.raises(UnreachableError):
        send_command(path, "links")
