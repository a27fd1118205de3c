"""A bad network: a TCP relay on loopback that delays, throttles, slices, cuts, resets, swallows or refuses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal

from dlbctl.router.lifecycle import BACKLOG
from tests.router.scripted import reset

READ_BYTES = 65536


@dataclass
class Way:
    """What happens to the bytes of one direction. Looked at for each piece, so it may be changed under way.

    latency_s: each read is held so long, and what comes meanwhile waits behind it. bytes_per_s: bandwidth, 0 for no
    limit. slice_bytes: the most that is passed on at once, 0 for what came. close_delay_s: an end of file is passed
    on so much later. stop_after: bytes of a connection that pass, and no more: then it is closed or reset for both
    sides, or it stalls (all that follows is swallowed, ends of file too). A stop at 0 strikes with the first byte.
    """

    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    slice_bytes: int = 0
    close_delay_s: float = 0.0
    stop_after: int | None = None
    then: Literal["close", "reset", "stall"] = "close"


class FaultRelay:
    """Passes connections to a port of loopback on. up: what clients send, down: what the server does.

    carried: the connections that are open.
    """

    def __init__(self, target_port: int) -> None:
        self.up = Way()
        self.down = Way()
        self.carried: set[Carried] = set()
        self._target_port = target_port
        # Bound and never listening, it keeps the port while the relay refuses.
        self._held = _bound(0)
        self.port: int = self._held.getsockname()[1]
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<FaultRelay {self.port} to {self._target_port}, {len(self.carried)} carried>"

    async def listen(self) -> None:
        """Accept connections (again)."""
        self._server = await asyncio.start_server(self._accepted, sock=_bound(self.port), backlog=BACKLOG)

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        assert self._server is not None
        self._server.close()

    def reset(self) -> None:
        """Reset every open connection, for both sides."""
        for carried in list(self.carried):
            carried.end(then="reset")

    def crash(self) -> None:
        """What is seen of a machine whose server dies: resets, then refusals."""
        self.refuse()
        self.reset()

    async def close(self) -> None:
        """End everything."""
        self.crash()
        await asyncio.gather(*(carried.task for carried in self.carried), return_exceptions=True)
        self._held.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except ConnectionError:
            reset(writer)
            return
        carried = Carried((reader, writer), (far_reader, far_writer))
        self.carried.add(carried)
        try:
            await carried.run(self.up, self.down)
        finally:
            self.carried.discard(carried)


class Carried:
    """One connection: a client's socket, the server's, and what travels between them."""

    def __init__(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._near = near
        self._far = far
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def run(self, up: Way, down: Way) -> None:
        """Carry both ways until both have ended."""
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(up, self._near[0], self._far[1]))
                ways.create_task(self._carry(down, self._far[0], self._near[1]))
        except* ConnectionError:
            self.end(then="reset")
        finally:
            self.end(then="close")

    def end(self, *, then: Literal["close", "reset"]) -> None:
        """End it for both sides; no effect on a side that has ended."""
        for _, writer in (self._near, self._far):
            if not writer.transport.is_closing():
                if then == "reset":
                    reset(writer)
                else:
                    writer.close()

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while data := await reader.read(READ_BYTES):
            await asyncio.sleep(way.latency_s)
            for piece in _sliced(data, way.slice_bytes):
                room = len(piece) if way.stop_after is None else max(0, way.stop_after - passed)
                passed += len(piece)
                await _write(writer, piece[:room], way.bytes_per_s)
                if way.stop_after is not None and passed >= way.stop_after:
                    await self._stop(way, reader)
                    return
        await asyncio.sleep(way.close_delay_s)
        if not writer.transport.is_closing():
            writer.write_eof()

    async def _stop(self, way: Way, reader: asyncio.StreamReader) -> None:
        if way.then != "stall":
            self.end(then=way.then)
            return
        while await reader.read(READ_BYTES):
            pass
        if reader is self._near[0]:  # the client has left: there is nobody to hide anything from
            self.end(then="close")


def _sliced(data: bytes, size: int) -> Iterator[bytes]:
    size = size or len(data)
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def _write(writer: asyncio.StreamWriter, piece: bytes, bytes_per_s: float) -> None:
    if writer.transport.is_closing():
        raise ConnectionResetError  # uvloop would raise a RuntimeError
    writer.write(piece)
    await writer.drain()
    # At least a turn of the loop, or the next piece would leave in the same write.
    await asyncio.sleep(len(piece) / bytes_per_s if bytes_per_s else 0)


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


@contextlib.asynccontextmanager
async def relayed(target_port: int) -> AsyncIterator[FaultRelay]:
    """A relay to a port of loopback for the length of a block."""
    relay = FaultRelay(target_port)
    await relay.listen()
    try:
        yield relay
    finally:
        await relay.close()
