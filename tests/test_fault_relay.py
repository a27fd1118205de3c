"""The fault relay itself: unchanged bytes when nothing is asked of it, and each fault as it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from tests.fault_relay import FaultRelay, relayed
from tests.router.live import on_loop, until

DATA = bytes(range(256)) * 400


class Echo:
    """Sends back what it gets. reads: the size of each read; ends: how its connections ended."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.ends: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.reads.append(len(data))
                writer.write(data)
                await writer.drain()
            self.ends.append("eof")
        except ConnectionError:
            self.ends.append("reset")
        writer.close()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Echo, FaultRelay, asyncio.StreamReader, asyncio.StreamWriter]]:
    """An echo, a relay to it and a client of the relay."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    try:
        async with relayed(server.sockets[0].getsockname()[1]) as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            try:
                yield echo, relay, reader, writer
            finally:
                writer.close()
            await until(lambda: not relay.carried)
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("slice_bytes", [0, 1000])
@on_loop
async def test_bytes_and_ends_pass_unchanged(slice_bytes: int) -> None:
    async with echoing() as (echo, relay, reader, writer):
        relay.up.slice_bytes = slice_bytes
        writer.write(DATA)
        writer.write_eof()
        assert await reader.read() == DATA
        assert echo.ends == ["eof"]
        if slice_bytes:
            assert max(echo.reads) < 10 * slice_bytes, "what leaves in slices may still be read together, now and then"


@on_loop
async def test_latency_holds_each_piece_and_bandwidth_stretches_it() -> None:
    async with echoing() as (_, relay, reader, writer):
        relay.up.latency_s, relay.down.latency_s = 0.05, 0.03
        began_s = monotonic()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert monotonic() - began_s >= 0.078  # timers have 1 ms resolution
        relay.up.latency_s = relay.down.latency_s = 0.0
        relay.down.bytes_per_s, relay.down.slice_bytes = 10_000.0, 100
        began_s = monotonic()
        writer.write(DATA[:1000])
        assert await reader.readexactly(1000) == DATA[:1000]
        assert monotonic() - began_s >= 0.09


@on_loop
async def test_an_end_is_passed_on_late() -> None:
    async with echoing() as (_, relay, reader, writer):
        relay.down.close_delay_s = 0.1
        began_s = monotonic()
        writer.write_eof()
        assert await reader.read() == b""
        assert monotonic() - began_s >= 0.098


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("then", ["close", "reset"])
@on_loop
async def test_a_connection_is_cut_after_so_many_bytes(way: str, then: str) -> None:
    async with echoing() as (echo, relay, reader, writer):
        faulty = relay.up if way == "up" else relay.down
        faulty.stop_after, faulty.then = 300, "reset" if then == "reset" else "close"
        writer.write(DATA[:1000])
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(65536):
                got += data
            assert then == "close"
        assert len(got) <= 300
        assert DATA.startswith(got)
        await until(lambda: len(echo.ends) == 1)
        assert sum(echo.reads) == (300 if way == "up" else 1000)


@on_loop
async def test_a_stalled_way_swallows_what_follows_and_ends_with_its_client() -> None:
    async with echoing() as (echo, relay, reader, writer):
        relay.down.stop_after, relay.down.then = 10, "stall"
        writer.write(DATA[:1000])
        assert await reader.readexactly(10) == DATA[:10]
        await until(lambda: sum(echo.reads) == 1000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.read(1)
    assert echo.ends == ["eof"]


@on_loop
async def test_it_refuses_resets_and_comes_back_at_the_same_port() -> None:
    async with echoing() as (echo, relay, reader, writer):
        relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        relay.reset()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await relay.listen()
        _, again = await asyncio.open_connection("127.0.0.1", relay.port)
        again.close()
        await until(lambda: len(echo.ends) == 2)
