"""A client's connection: bytes in, whole requests out, answers in their order.

Hosted by uvicorn as its `http` protocol class; uvicorn owns the listening, this owns everything else, because
none of uvicorn's own limits reach a custom class.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools

from dlbctl.router.http1 import answer, error_body
from dlbctl.router.request import Refusal, Request
from dlbctl.router.wheel import NEVER

if TYPE_CHECKING:
    from dlbctl.router.listener import Listener

PIPELINE_BYTES = 64 * 1024
LINGER_S = 2.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: closing sends RST

_LOG = logging.getLogger(__name__)


class Responder(Protocol):
    """Whatever is answering the connection's current request."""

    def client_gone(self) -> None:
        """The client left: stop."""

    def client_paused(self) -> None:
        """The client reads slower than the answer comes."""

    def client_resumed(self) -> None:
        """The client has caught up."""

    def expired(self, now_s: float) -> None:
        """The deadline that the responder set has passed."""


class Downstream(asyncio.Protocol):
    """One accepted connection. At most one request is being answered; pipelined ones wait, bounded in bytes."""

    def __init__(self, listener: Listener, connections: set[Any]) -> None:
        self.listener = listener
        self.deadline_s = NEVER
        self.look_s = NEVER
        self.responder: Responder | None = None
        self.transport: asyncio.Transport
        self.client = b""
        self.paused = False  # the client reads slower than we write
        self._connections = connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request = Request()  # arriving, or the last that has
        self._answering = self._request
        self._body: bytes | bytearray = b""
        self._waiting: deque[Request] = deque()
        self._pipelined = 0
        self._reading = False  # a request has begun to arrive and is not whole
        self._in_head = False
        self._head_bytes = 0  # at least so much of the head has come
        self._head_most = 0  # and at most
        self._read_bytes = 0  # by the last read
        self._began = False  # a request has begun within the last read
        self._ended = False  # a request has ended within the last read
        self._upgrading = False
        self._deaf = False  # what still arrives is of no interest
        self._keep_alive = True
        self._half_closed = False  # the client can ask for nothing more

    def __repr__(self) -> str:
        return f"<Downstream {self.client.decode()} {'busy' if self.responder else 'idle'}>"

    # -- the transport's side ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted: the head of a first request is due."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        peer = transport.get_extra_info("peername")
        self.client = peer[0].encode() if isinstance(peer, tuple) and peer else b""
        self._connections.add(self)
        self._watch(self.listener.limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        """The client left, or we closed."""
        self._connections.discard(self)
        self.deadline_s = NEVER
        self._deaf = True
        self._forget_requests()
        # The wheel may hold this for a while; what it held must not wait with it.
        self._parser = None  # it refers to this in turn: a cycle, which the collector would find late
        self._request = self._answering = Request()
        if self.responder is not None:
            responder, self.responder = self.responder, None
            responder.client_gone()

    def eof_received(self) -> bool:
        """A FIN. close() and shutdown(SHUT_WR) look alike, so before the answer is out it counts as leaving."""
        if self.responder is None and not self._waiting:
            return False
        if self.listener.half_close:
            self._half_closed = True
            self._reading = False  # what is not whole now never will be
            return True
        self.transport.abort()
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._deaf:
            return
        if self.responder is not None:
            self._pipelined += len(data)
            if self._pipelined > PIPELINE_BYTES:
                self.transport.abort()
                return
        self._began = self._ended = False
        self._read_bytes = len(data)
        self._parse(data)
        if self._reading:
            self._read_on()

    def _parse(self, data: bytes) -> None:
        # A loop: every upgrade that is not made needs another parser for what follows it.
        todo: list[bytes | memoryview] = [data]
        while todo and not self._deaf:
            piece = todo.pop()
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(piece)[upgrade.args[0] :]
                todo += [rest, self._ignore_upgrade()] if rest else [self._ignore_upgrade()]
            except httptools.HttpParserCallbackError:
                _LOG.exception("a fault of our own while reading a request from %r", self)
                self.transport.abort()
            except httptools.HttpParserError as error:
                self._refuse(Refusal(400, "bad_request", f"not a valid HTTP/1.1 request: {error}"))

    def _read_on(self) -> None:
        """A request has arrived in part: bound its head in size, and head and body in time."""
        limits = self.listener.limits
        if self._in_head:
            if self._began and self.responder is None:
                self._watch(limits.header_timeout_s)  # once: a byte a second buys no more time
            self._head_most += self._read_bytes
            if not self._ended:  # else most of what was read may be of the request before
                self._head_bytes += self._read_bytes
            if self._head_bytes > limits.header_bytes:
                self._refuse(Request.head_too_large(limits))
        elif self.responder is None:
            self._watch(limits.body_timeout_s)

    def pause_writing(self) -> None:
        """The client's buffer is full."""
        self.paused = True
        if self.responder is not None:
            self.responder.client_paused()

    def resume_writing(self) -> None:
        """The client's buffer has room again."""
        self.paused = False
        if self.responder is not None:
            self.responder.client_resumed()

    def shutdown(self) -> None:
        """Asked by the server that is stopping: finish the answer under way, then close."""
        self._keep_alive = False
        if self.responder is None and not self._reading:
            self._hang_up()

    def expired(self, now_s: float) -> None:
        """A deadline passed: the responder's, or that of a client who sends too slowly or not at all."""
        if self.responder is not None:
            self.responder.expired(now_s)
        elif self._reading:
            self._refuse(Refusal(408, "request_timeout", "the request did not arrive in time"))
        elif self.transport.is_closing():
            self.transport.abort()  # it has not read what was left for it
        else:
            self._hang_up()

    # -- the parser's side -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._upgrading or self._deaf:
            return
        self._request = Request()
        self._body = b""
        self._reading = self._in_head = self._began = True
        self._head_bytes = self._head_most = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the URL."""
        if not self._upgrading:
            self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header line (or a trailer, which nobody here reads)."""
        if self._in_head:
            self._request.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: check it before a byte of the body is kept."""
        if not self._in_head:
            return
        self._in_head = False
        request, parser = self._request, self._parser
        request.method = parser.get_method()
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        limits = self.listener.limits
        fault = request.read_head(limits)
        if self._head_most + self._read_bytes > limits.header_bytes:
            fault = fault or request.check_head_size(limits)
        if fault is not None:
            self._refuse(fault)
        elif request.expect_continue and self.responder is None and not self._waiting:
            self._continue()

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        if self._deaf:
            return
        self._request.size += len(piece)
        if self._request.size > self.listener.limits.body_bytes:
            self._refuse(Request.too_large(self.listener.limits))
            return
        router = self.listener.router
        router.body_bytes += len(piece)
        self._request.held += len(piece)
        if router.body_bytes > self.listener.limits.total_body_bytes:
            self._refuse(Request.no_memory(self.listener.limits))
            return
        if not self._body:
            self._body = piece  # most bodies come whole
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece  # a list of tiny chunks would be thirty times their size

    def on_message_complete(self) -> None:
        """The request is whole, unless the parser stopped at an upgrade we do not make."""
        if self._deaf:
            return
        if self._parser.should_upgrade() and not self._upgrading:
            self._upgrading = True
            return
        self._upgrading = False
        request = self._request
        request.body = self._body if isinstance(self._body, bytes) else bytes(self._body)
        self._body = b""
        self._reading = False
        self._ended = True
        self._accept(request)

    # -- inside ------------------------------------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        deadline_s = self.listener.clock() + seconds
        if deadline_s < self.look_s:
            self.listener.wheel.watch(self, deadline_s)
        else:
            self.deadline_s = deadline_s

    def _ignore_upgrade(self) -> bytes:
        """Go on as if no upgrade had been asked for: a fresh parser, and the head it has to be fed first."""
        request = self._request
        self._parser = httptools.HttpRequestParser(self)
        framing = b"content-length: %d" % request.content_length
        if request.chunked:
            framing = b"transfer-encoding: chunked"
        connection = b"keep-alive" if request.keep_alive else b"close"
        return b"%b / HTTP/1.1\r\nconnection: %b\r\n%b\r\n\r\n" % (request.method, connection, framing)

    def _continue(self) -> None:
        """Ask for the body of a client that waits to be asked."""
        self._request.expect_continue = False
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with an error after what is being answered, and listen no more."""
        if self._deaf:
            return
        self._deaf = True
        if not self._reading:  # what is wrong stands where a request should have begun
            self._request = Request()
            self._reading = True
        elif self._in_head:
            self._request.id = self._request.header(b"x-request-id")
        self._request.refusal = refusal
        self._request.keep_alive = False
        self._accept(self._request)

    def _accept(self, request: Request) -> None:
        request.received_s = self.listener.clock()
        if self.responder is None and not self._waiting:
            self._serve(request)
        else:
            self._waiting.append(request)

    def _serve(self, request: Request) -> None:
        self.deadline_s = NEVER
        self._answering = request
        if request.refusal is not None:
            self.refuse(request, request.refusal)
        else:
            self.listener.serve(self, request)

    def _forget_requests(self) -> None:
        """Nothing more is answered here: keep no bodies."""
        for request in (self._answering, *self._waiting, self._request):
            self.let_go(request)
        self._waiting.clear()
        self._body = b""

    # -- the responder's side ------------------------------------------------------------------------------

    def let_go(self, request: Request) -> None:
        """A request's body is of no more use."""
        request.body = b""
        self.listener.router.body_bytes -= request.held
        request.held = 0

    def keeps_alive(self, request: Request) -> bool:
        """Whether the connection stays open after this answer."""
        return request.keep_alive and request.version == "1.1" and self._open_for_more()

    def _open_for_more(self) -> bool:
        if not self._keep_alive:
            return False
        # A router about to stop says so with each answer: clients that stayed would be cut off between two requests.
        return bool(self._waiting) or (self.listener.router.ready and not self._half_closed)

    def reply(
        self,
        request: Request,
        status: int,
        body: bytes,
        extra: bytes = b"",
        *,
        content_type: bytes = b"application/json",
    ) -> int:
        """Send a whole answer of our own; the number of its bytes. extra: further header lines, each ending in CRLF."""
        keep_alive = self.keeps_alive(request)
        extra += b"x-request-id: %b\r\n" % self.listener.router.identify(request)
        if not keep_alive:
            extra += b"connection: close\r\n"
        data = answer(status, body, content_type=content_type, extra=extra)
        if request.method == b"HEAD":
            data = data[: len(data) - len(body)]
        self.transport.write(data)
        self.finished(keep_alive=keep_alive)
        return len(data)

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """Answer a request that is not relayed with an error."""
        status, code, message, retry_after_s = refusal
        extra = b"retry-after: %d\r\n" % retry_after_s if retry_after_s else b""
        sent = self.reply(request, status, error_body(status, code, message), extra)
        self.listener.router.ledger.refused(request, self.client, refusal, self.listener.clock(), sent)

    def finished(self, *, keep_alive: bool) -> None:
        """The answer is out (or never will be): go on with the next request, or close."""
        self.responder = None
        if self._answering.held:
            self.let_go(self._answering)
        # Not `keep_alive` alone: the server may have begun to stop, or the client to leave, since the head went out.
        if not keep_alive or not self._open_for_more():
            self._close()
            return
        if self._waiting:
            # Not from within this call: a thousand pipelined requests would nest a thousand calls.
            asyncio.get_running_loop().call_soon(self._serve_next)
            return
        self._pipelined = 0
        limits = self.listener.limits
        self._watch(limits.body_timeout_s if self._reading else limits.keep_alive_s)
        if self._reading and not self._in_head and self._request.expect_continue:
            self._continue()

    def cut(self, *, framed: bool) -> None:
        """End an answer that will never be whole. Where its framing does not show that, a reset has to."""
        self.responder = None
        self._deaf = True
        self._forget_requests()
        if not framed:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self._hang_up()

    def _close(self) -> None:
        """Close, but let a client that is still sending read its answer: closing at once would reset it away."""
        self._deaf = True
        self._forget_requests()
        if self._reading and self.transport.can_write_eof():
            self._reading = False
            self.transport.write_eof()
            self._watch(LINGER_S)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close, once the client has read what it is owed; but it cannot take for ever over that."""
        self.transport.close()
        self._watch(self.listener.limits.keep_alive_s)

    def _serve_next(self) -> None:
        if self._waiting and self.responder is None:
            self._serve(self._waiting.popleft())
