"""An event loop whose connections are in memory: protocol classes fed byte by byte, thousands of times a second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dlbctl.core.settings import TierSettings
from dlbctl.core.tier import Tier
from dlbctl.router.downstream import Downstream
from dlbctl.router.limits import HttpLimits
from dlbctl.router.listener import Listener
from dlbctl.router.router import Router

from .live import assert_idle, assert_no_drift, mark_up, server
from .wire import Answer, Client, split_head

Reply = Callable[[bytes, bytes], Sequence[bytes]]


class MemoryTransport(asyncio.Transport):
    """One end of a connection, as a protocol sees it. written: what the protocol has sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.written = b""
        self.ended = False
        self.on_write: Callable[[], None] | None = None
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert isinstance(data, bytes)
        if not self.ended:
            self.written += data
            if self.on_write is not None:
                self.on_write()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", 4711) if name == "peername" else default

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def write_eof(self) -> None:
        """The other end learns of it with the end."""

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""

    def lose(self, error: Exception | None = None) -> None:
        """End the connection from either side."""
        if not self.ended:
            self.ended = True
            self.loop.call_soon(self.protocol.connection_lost, error)

    def feed(self, data: bytes) -> None:
        """Bytes from the other side, unless the connection has ended."""
        if not self.ended and data:
            self.protocol.data_received(data)


class MemoryServer:
    """Answers each whole request on one connection with `reply(head, body)`, a piece per turn of the loop.

    An empty piece ends the connection.
    """

    def __init__(self, transport: MemoryTransport, reply: Reply) -> None:
        self.transport = transport
        self.reply = reply
        transport.on_write = self.look

    def look(self) -> None:
        head, separator, rest = self.transport.written.partition(b"\r\n\r\n")
        if not separator:
            return
        _, fields = split_head(head + separator)
        length = next((int(value) for name, value in fields if name == b"content-length"), 0)
        if len(rest) < length:
            return
        self.transport.written = rest[length:]
        for piece in self.reply(head, rest[:length]):
            if piece:
                self.transport.loop.call_soon(self.transport.feed, piece)
            else:
                self.transport.loop.call_soon(self.transport.lose)


class MemoryLoop(asyncio.SelectorEventLoop):
    """Connects to a MemoryServer whatever the address."""

    reply: Reply

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        protocol = protocol_factory()
        transport = MemoryTransport(self, protocol)
        MemoryServer(transport, self.reply)
        return transport, protocol


class Bench:
    """A leaf with one server `s` for `m`, a client connection, and a server that replies by function."""

    def __init__(self, loop: MemoryLoop, reply: Reply, limits: HttpLimits) -> None:
        loop.reply = reply
        self.loop = loop
        self.tier = Tier(TierSettings("leaf", "c1", (server("s", 1),), seed=1), "boot")
        mark_up(self.tier)
        self.router = Router(self.tier, {}, loop)
        self.connections: set[Any] = set()
        self.client = MemoryTransport(loop, Downstream(Listener(self.router, limits), self.connections))

    async def feed(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self.client.feed(piece)
            await self.quiet()

    async def quiet(self) -> None:
        """Turn the loop until nothing is left to do at once."""
        for _ in range(8):
            await asyncio.sleep(0)
        while self.loop._ready:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert_no_drift(self.router)

    async def leave(self) -> None:
        """The client goes; nothing may stay behind."""
        self.client.lose()
        await self.quiet()
        assert not self.connections
        assert self.router.body_bytes == 0
        assert_idle(self.tier)
        assert not self.router.ledger.open
        self.router.close()
        await self.quiet()
        assert not self.router.pool("http://127.0.0.1:1").open

    async def answers(self) -> list[Answer]:
        """What the client got, decoded."""
        reader = asyncio.StreamReader()
        reader.feed_data(self.client.written)
        reader.feed_eof()
        client = Client(reader, None)  # type: ignore[arg-type]
        found = []
        while not reader.at_eof():
            found.append(await client.answer())
        return found


class _Keeping(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(f"{record.getMessage()} {record.exc_info}")


@contextlib.contextmanager
def no_faults_of_our_own() -> Iterator[None]:
    """Fail when the code under test logs a fault of its own."""
    handler = _Keeping(logging.ERROR)
    watched = [logging.getLogger("dlbctl"), logging.getLogger("asyncio")]
    for logger in watched:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in watched:
            logger.removeHandler(handler)
    assert not handler.kept, handler.kept
