"""Real socket servers that behave, and misbehave, by script: a coroutine per accepted connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from dlbctl.router.lifecycle import BACKLOG

from .wire import Fields, read_head, split_head

_RESET = struct.pack("ii", 1, 0)


@dataclass
class Heard:
    """One request as the server read it."""

    method: bytes
    url: bytes
    fields: Fields
    body: bytes
    raw_head: bytes

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key == name), None)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


class Connection:
    """The server's end of one connection."""

    def __init__(self, server: ScriptedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer
        self.gone = False  # `left` has seen it end
        self.peeked: Heard | None = None  # heard to see who should answer it

    async def hear(self) -> Heard:
        """Read one request whole. IncompleteReadError when the router closes instead."""
        if self.peeked is not None:
            peeked, self.peeked = self.peeked, None
            return peeked
        head = await read_head(self.reader)
        line, fields = split_head(head)
        method, url, _ = line.split(b" ")
        length = next((int(value) for name, value in fields if name == b"content-length"), 0)
        heard = Heard(method, url, fields, await self.reader.readexactly(length), head)
        self.server.heard.append(heard)
        return heard

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            raise ConnectionResetError  # uvloop would raise a RuntimeError
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Return when the router has closed or reset this connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.gone = True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        reset(self.writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


Script = Callable[[Connection], Awaitable[None]]


@dataclass
class ScriptedServer:
    """Runs its script for each connection. heard: every request read, over all connections."""

    script: Script
    port: int = 0
    heard: list[Heard] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        connection = Connection(self, reader, writer)
        self.connections.append(connection)
        try:
            await self.script(connection)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the router left, or the test is over
        except Exception as error:
            self.errors.append(error)
        finally:
            writer.close()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, backlog=BACKLOG)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self.connections:
            await connection.close()


@contextlib.asynccontextmanager
async def serving(script: Script, *, port: int = 0) -> AsyncIterator[ScriptedServer]:
    """A scripted server for the length of a block; an unforeseen error in its script fails the test."""
    scripted = ScriptedServer(script, port)
    server = await scripted.start()
    try:
        yield scripted
    finally:
        server.close()
        await scripted.stop()
        await server.wait_closed()
    if scripted.errors:
        raise scripted.errors[0]


def answering(answer: bytes) -> Script:
    """Answer every request with these bytes and keep the connection."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await connection.send(answer)

    return script


def once(answer: bytes) -> Script:
    """Answer one request with these bytes and close."""

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(answer)

    return script


class Held:
    """A server that sends `begun` at once and `rest` when it may. left: connections that ended instead."""

    def __init__(self, begun: bytes, rest: bytes) -> None:
        self.begun = begun
        self.rest = rest
        self.go = asyncio.Event()
        self.left = 0

    async def script(self, connection: Connection) -> None:
        while True:
            await connection.hear()
            await connection.send(self.begun)
            await self._go_or_left(connection)
            if connection.gone:
                self.left += 1
                return
            await connection.send(self.rest)

    async def _go_or_left(self, connection: Connection) -> None:
        waits = [asyncio.ensure_future(self.go.wait()), asyncio.ensure_future(connection.left())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def sized(body: bytes, *, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    """An answer with content-length."""
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )


def chunked(*pieces: bytes, status: bytes = b"200 OK", end: bool = True) -> bytes:
    """An answer of one chunk for each piece."""
    head = b"HTTP/1.1 %b\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" % status
    return head + b"".join(chunk(piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port of loopback that refuses connections for as long as the block lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening
        yield held.getsockname()[1]


@contextlib.asynccontextmanager
async def full_backlog() -> AsyncIterator[int]:
    """A port of loopback where connecting neither succeeds nor fails: its backlog is full and nobody accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        while True:
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            try:
                await asyncio.wait_for(loop.sock_connect(filler, ("127.0.0.1", port)), 0.1)
            except TimeoutError:
                break
        yield port
