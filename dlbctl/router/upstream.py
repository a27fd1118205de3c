"""Connections to servers and leaves: a pool per address, one answer at a time on each connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from dlbctl.core.errors import ConfigError
from dlbctl.core.events import Failure
from dlbctl.router.http1 import Headers
from dlbctl.router.wheel import NEVER, Wheel

IDLE_PER_ADDRESS: Final = 256
# A server's head is bounded as a client's is, with more room: an engine says more of itself.
HEAD_BYTES: Final = 64 * 1024
HEAD_FIELDS: Final = 100
BODILESS: Final = frozenset({204, 304})
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})

_LOG = logging.getLogger(__name__)


class Answered(Protocol):
    """Who waits for an answer on an upstream connection."""

    def connected(self, upstream: Upstream) -> None:
        """A new connection is ready."""

    def head(self, status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> None:
        """The answer's head. bodiless: no body follows, whatever the headers say."""

    def data(self, pieces: list[bytes], complete: bool) -> None:
        """What one read brought of the body (the head may have come with it). complete: the answer is whole."""

    def lost(self, failure: Failure) -> None:
        """The attempt ended before the answer was whole."""


class Address:
    """Where a server listens. ConfigError for a URL that is not http(s)://host[:port]."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise _not_an_address(url) from error
        self.url = f"{parts.scheme}://{parts.netloc}"
        # Nothing but scheme, host and port: no path (the client's is used), no password (it would be shown).
        bare = url.rstrip("/").lower() == self.url.lower() and "@" not in url
        if parts.scheme not in {"http", "https"} or not bare or not _is_host(parts.hostname or ""):
            raise _not_an_address(url)
        self.host = parts.hostname or ""
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.tls = parts.scheme == "https"
        self.authority = parts.netloc.encode()

    def __repr__(self) -> str:
        return f"<Address {self.url}>"


def _is_host(host: str) -> bool:
    """Whether it can be looked up: printable ASCII in labels that DNS allows."""
    visible = all("!" <= letter <= "~" for letter in host)
    return visible and all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))


def _not_an_address(url: str) -> ConfigError:
    shown = url.rpartition("@")[2]  # what stands before it may be a password
    return ConfigError(f"{shown!r} is not an address of a server", hint="write http://host:port")


class Pool:
    """Idle connections to one address, the last used at the end, and the making of new ones. Satisfies `Watched`.

    idle_s: how long a connection may stay unused.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: Address, wheel: Wheel, *, idle_s: float = NEVER
    ) -> None:
        self.address = address
        self.idle: list[Upstream] = []
        self.open: set[Upstream] = set()
        self.idle_s = idle_s
        self.deadline_s = NEVER
        self.look_s = NEVER
        self._loop = loop
        self._wheel = wheel
        self._most_idle = IDLE_PER_ADDRESS
        self._tls = ssl.create_default_context() if address.tls else None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Pool {self.address.url} {len(self.idle)} idle of {len(self.open)}>"

    def take(self) -> Upstream | None:
        """An idle connection, if there is one."""
        while self.idle:
            upstream = self.idle.pop()
            if not upstream.transport.is_closing():
                return upstream
        return None

    def keep(self, upstream: Upstream) -> bool:
        """Keep a connection for the next request, unless there are enough."""
        if len(self.idle) >= self._most_idle:
            return False
        self.idle.append(upstream)
        if self.idle_s != NEVER:
            upstream.idle_since_s = self._wheel.clock()
            if self.deadline_s == NEVER:
                self._wheel.watch(self, upstream.idle_since_s + self.idle_s)
        return True

    def expired(self, now_s: float) -> None:
        """Close what has been unused for too long. The wheel looks once for all: the longest unused stand first."""
        self.deadline_s = NEVER
        while self.idle and self.idle[0].idle_since_s + self.idle_s <= now_s:
            self.idle.pop(0).transport.close()
        if self.idle:
            self._wheel.watch(self, self.idle[0].idle_since_s + self.idle_s)

    def connect(self, waiting: Answered) -> asyncio.Task[None]:
        """Make a connection; cancel the task to give up."""
        task = self._loop.create_task(self._connect(waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Close what is idle; connections in use end with their answer."""
        for upstream in self.idle:
            upstream.abort()
        self.idle.clear()

    def retire(self) -> None:
        """Close what is idle, and from now on whatever comes back: the address is not used any more."""
        self._most_idle = 0
        self.close()

    async def _connect(self, waiting: Answered) -> None:
        address = self.address
        upstream = Upstream(self)
        try:
            await self._loop.create_connection(lambda: upstream, address.host, address.port, ssl=self._tls)
        except OSError:  # refused, unreachable, unknown name, TLS
            waiting.lost(Failure.REFUSED)
        except asyncio.CancelledError:
            # Made and not yet handed over: uvloop may close such a transport without telling its protocol, or not.
            if upstream in self.open:
                self.open.discard(upstream)
                upstream.transport.abort()
            raise
        else:
            waiting.connected(upstream)


class Upstream(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.waiting: Answered | None = None
        self.idle_since_s = 0.0
        self.transport: asyncio.Transport
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._reason = b""
        self._pieces: list[bytes] = []
        self._head_bytes = 0  # at most so much of the head has come
        self._begun = False  # the head of the answer has been handed over
        self._bodiless = False
        self._head_request = False
        self._complete = False
        self._reusable = False
        self.heard = False  # something of the answer has come
        self._surplus = False  # more has come than was asked for
        self._paused = False

    def __repr__(self) -> str:
        return f"<Upstream {self.pool.address.url} {'busy' if self.waiting else 'idle'}>"

    def ask(self, waiting: Answered, data: bytes, body: bytes, *, head_request: bool) -> None:
        """Send a request; the answer goes to `waiting`."""
        self.waiting = waiting
        self._headers = []
        self._reason = b""
        self._head_bytes = 0
        self._begun = self._bodiless = self._complete = self._reusable = self.heard = False
        self._head_request = head_request
        if len(body) < 16_384:
            self.transport.write(data + body)
        else:
            self.transport.write(data)
            self.transport.write(body)

    def abort(self) -> None:
        """Drop the connection; whoever waits for it has lost interest."""
        self.waiting = None
        self.transport.abort()

    def pause(self) -> None:
        """Stop reading: the client is behind."""
        self._paused = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # -- the transport's side ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        self.pool.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed or died, or we aborted."""
        self.pool.open.discard(self)
        self._parser = None  # it refers to this in turn: a cycle, which the collector would find late
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            if self in self.pool.idle:
                self.pool.idle.remove(self)
        elif exc is None and self._ends_with_connection():
            waiting.data([], True)
        else:
            waiting.lost(Failure.CLOSED)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        waiting = self.waiting
        if waiting is None:
            self.transport.abort()  # an answer nobody asked for: this connection is out of step
            return
        self.heard = True
        if not self._begun:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if isinstance(error, httptools.HttpParserCallbackError):
                _LOG.exception("a fault of our own while reading an answer on %r", self)
            self._surplus = True
            if not self._complete:
                self._give_up()
        if not self._begun and self._head_bytes > HEAD_BYTES:
            self._give_up()
        if self.waiting is not waiting:
            return
        pieces, self._pieces = self._pieces, []
        if self._complete:
            self._release()
            waiting.data(pieces, True)
        else:
            waiting.data(pieces, False)

    # -- the parser's side -------------------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        """A piece of the reason phrase."""
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header line."""
        if not self._begun:  # afterwards they are trailers
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._begun:
            self._surplus = True  # a second answer
            return
        status = self._parser.get_status_code()
        if status < 200 or self.waiting is None:
            return  # interim: the answer itself is still to come
        if len(self._headers) > HEAD_FIELDS or (self._head_bytes > HEAD_BYTES and self._head_size() > HEAD_BYTES):
            self._give_up()
            return
        self._begun = True
        self._bodiless = self._head_request or status in BODILESS
        self.waiting.head(status, self._reason, self._headers, bodiless=self._bodiless)
        if self._head_request:
            self._complete = True

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if not self._complete:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """An answer is whole, or an interim one has passed."""
        if self._begun:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()  # only known before the next answer begins
        else:
            self._headers = []
            self._reason = b""

    # -- inside ------------------------------------------------------------------------------------------

    def _head_size(self) -> int:
        """Bytes of the head; asked only when so much came that they may be too many."""
        return len(self._reason) + sum(len(name) + len(value) + 4 for name, value in self._headers)

    def _give_up(self) -> None:
        """What comes is no answer we take."""
        waiting = self.waiting
        self.abort()
        if waiting is not None:
            waiting.lost(Failure.PROTOCOL)

    def _ends_with_connection(self) -> bool:
        """Whether the end of the connection is how the end of this body shows."""
        framed = any(name in FRAMING for name, _ in self._headers)
        return self._begun and not self._bodiless and not framed

    def _release(self) -> None:
        self.waiting = None
        if self._paused:
            self.resume()  # this answer was whole already; the next one is for somebody else
        usable = self._reusable and not self._surplus and not self.transport.is_closing()
        if not (usable and self.pool.keep(self)):
            self.transport.close()
