"""HTTP/1.1 as the engine speaks it: one connection, its requests in order, one answer at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Bodies and headers received and not yet answered, on one connection."""

_WRITE_BUFFER_BYTES = 64 * 1024
"""Above it a stream waits for its reader; tokens meanwhile are only counted."""


def _head(status: int, headers: str, close: bool) -> bytes:
    """A response's head but for its last, empty line."""
    connection = "connection: close\r\n" if close else ""
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{connection}{headers}".encode("latin-1")


@dataclass(slots=True)
class _Received:
    """A request while its bytes come in."""

    method: str = ""
    url: bytes = b""
    body: list[bytes] = field(default_factory=list)
    size: int = 0
    expects_continue: bool = False


def _nothing() -> None:
    """What happens when nobody has asked to be told."""


class Handler(Protocol):
    """Who answers requests."""

    def handle(self, exchange: Exchange) -> None:
        """Answer now, or later from callbacks; never block."""


class Exchange:
    """One request and the answer to it. Writing to an exchange that is over does nothing."""

    on_gone: Callable[[], None]
    """Called once if the client leaves before the answer is complete."""
    on_writable: Callable[[], None]
    """Called when a reader that was too slow has caught up."""

    def __init__(self, connection: Connection, request: _Received, *, keep_alive: bool, chunked: bool) -> None:
        self.method = request.method
        self.path = request.url.split(b"?", 1)[0].decode("latin-1")
        self.body = b"".join(request.body)
        self.size = request.size
        self.on_gone = self.on_writable = _nothing
        self._connection = connection
        self._keep_alive = keep_alive
        self._chunked = chunked
        self._over = False

    def __repr__(self) -> str:
        return f"<Exchange {self.method} {self.path}{', over' if self._over else ''}>"

    @property
    def writable(self) -> bool:
        """Whether the client reads as fast as it is written to."""
        return self._connection.writable

    def reply(self, status: int, content_type: str, body: bytes, extra_headers: str = "") -> None:
        """Answer whole. extra_headers: complete lines, each with its CRLF."""
        headers = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra_headers}\r\n"
        self._write(_head(status, headers, not self._keep_alive) + (b"" if self.method == "HEAD" else body))
        self._end()

    def start_stream(self, content_type: str) -> None:
        """Send the head of an answer that comes in pieces; to HTTP/1.0 its end is the connection's."""
        framing = "transfer-encoding: chunked\r\n" if self._chunked else ""
        headers = f"content-type: {content_type}\r\ncache-control: no-store\r\n{framing}\r\n"
        self._write(_head(200, headers, not self._keep_alive))

    def send(self, data: bytes) -> None:
        """Send a piece of the answer."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self, data: bytes) -> None:
        """Send the last piece."""
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if self._chunked else data)
        self._end()

    def reset(self) -> None:
        """Cut the connection without a word."""
        self._connection.abort()

    def lose(self) -> None:
        """The client is gone."""
        if not self._over:
            self._over = True
            self.on_gone()

    def _write(self, data: bytes) -> None:
        if not self._over:
            self._connection.write(data)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._connection.answered(self._keep_alive)


class Connection(asyncio.Protocol):
    """One client's connection. A client that shuts down its sending side counts as gone, as with uvicorn."""

    def __init__(self, handler: Handler, connections: set[Connection]) -> None:
        self.writable = True
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._pipelined: deque[Exchange] = deque()
        self._held_bytes = 0
        self._received = _Received()

    def __repr__(self) -> str:
        return f"<Connection {self._current!r}, {len(self._pipelined)} more>"

    def serves(self, exchange: Exchange) -> bool:
        """Whether the exchange is this connection's current one."""
        return self._current is exchange

    def write(self, data: bytes) -> None:
        """Bytes to the client."""
        self._transport.write(data)

    def abort(self) -> None:
        """Reset the connection."""
        self._transport.abort()

    def answered(self, keep_alive: bool) -> None:
        """The current exchange is over; the next one's turn comes."""
        assert self._current is not None
        self._held_bytes -= self._current.size
        self._current = None
        if not keep_alive:
            self._pipelined.clear()
            self._transport.close()
        elif self._pipelined:
            # Not at once: a long pipeline would nest as deep as it is long.
            asyncio.get_running_loop().call_soon(self._next)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client left, or was made to."""
        self._connections.discard(self)
        self._pipelined.clear()
        if self._current is not None:
            self._current.lose()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """The client caught up."""
        self.writable = True
        if self._current is not None:
            self._current.on_writable()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._transport.is_closing():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing to upgrade to: the request was answered as it is, what follows it is lost.
            self._transport.close()
        except httptools.HttpParserError:
            self._refuse(400)
        if self._held_bytes > MAX_HELD_BYTES:
            self._refuse(413)

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """A request starts."""
        self._received = _Received()

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._received.url += url
        self._hold(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field; the engine needs only one."""
        self._hold(len(name) + len(value))
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self._received.expects_continue = True

    def on_headers_complete(self) -> None:
        """The body follows, if the client may send it."""
        if self._received.expects_continue and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._received.body.append(data)
        self._hold(len(data))

    def on_message_complete(self) -> None:
        """A request is there as a whole."""
        parser = self._parser
        self._received.method = parser.get_method().decode()
        modern = parser.get_http_version() == "1.1"
        keep_alive = modern and parser.should_keep_alive()
        exchange = Exchange(self, self._received, keep_alive=keep_alive, chunked=modern)
        if self._current is None and not self._pipelined:
            self._begin(exchange)
        else:
            self._pipelined.append(exchange)

    def _hold(self, size: int) -> None:
        self._received.size += size
        self._held_bytes += size

    def _next(self) -> None:
        if self._current is None and self._pipelined:
            self._begin(self._pipelined.popleft())

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        self._handler.handle(exchange)

    def _refuse(self, status: int) -> None:
        """The stream of bytes makes no sense from here on."""
        if self._current is None and not self._transport.is_closing():
            self.write(_head(status, "content-length: 0\r\n\r\n", True))
        self._transport.close()
