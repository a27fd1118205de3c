"""One HTTP/1.1 connection to a target: bytes in and out, one request at a time, kept alive between them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbctl.replay.answer import Answer


class Connection(asyncio.Protocol):
    """Sends requests and reports what comes back to their answers; says when it is free, and when closed."""

    def __init__(
        self,
        on_free: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self._on_free = on_free
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._headers: dict[bytes, bytes] = {}
        self._now_s = 0.0
        self._begun = False
        self._excess = False
        self._keep_alive = False
        self.exchanges = 0

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else "idle" if self._answer is None else "busy"
        return f"<Connection {state}, {self.exchanges} exchanges>"

    def exchange(self, request: tuple[bytes, ...], answer: Answer) -> asyncio.Future[None]:
        """Send a request; the future is done when the answer has ended, well or not."""
        assert self._answer is None, f"{self!r} is busy"
        self._answer = answer
        self._ended = asyncio.get_running_loop().create_future()
        self._begun = False
        self._parser = httptools.HttpResponseParser(self)
        self.exchanges += 1
        if answer.sent_s is None:
            answer.sent_s = time.monotonic()
        if self._transport is None:
            self._fail("disconnected", "the connection was closed before the request was sent")
        else:
            self._transport.writelines(request)
        return self._ended

    def abort(self, reason: str, detail: str = "") -> None:
        """End the exchange as failed, and the connection with it."""
        if self._answer is not None:
            self._fail(reason, detail)
        if self._transport is not None:
            self._transport.abort()

    def drop(self) -> None:
        """Close at once and leave the answer as it stands: whoever gave it has given it up."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; on an idle connection, bytes nobody asked for."""
        answer = self._answer
        if answer is None:
            self.abort("bad-http")
            return
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort("bad-http", str(error))
            return
        if self._answer is not answer:
            self._release()

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed: the proper end of an answer that has no length, a cut of any other."""
        self._transport = None
        self._on_closed(self)
        if self._answer is None:
            return
        self._now_s = time.monotonic()
        detail = str(exc) if exc else "closed by the target"
        if not self._begun:
            self._fail("disconnected", detail)
        elif exc is None and self._ends_at_close():
            self._finish()
        else:
            self._fail("truncated", detail)

    # httptools' calls

    def on_message_begin(self) -> None:
        """An answer begins; after the end of the one awaited, bytes that nobody asked for."""
        self._headers = {}
        self._excess = self._answer is None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is whole; an interim one (1xx) announces another."""
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:
            self._begun = True
            self._answer.begin(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._answer is not None:
            self._answer.receive(body, self._now_s)

    def on_message_complete(self) -> None:
        """The body ended by its length or its last chunk."""
        if self._answer is not None and self._begun:
            # Asked here: once the parser waits for another message it no longer says.
            self._keep_alive = self._parser.should_keep_alive()
            self._finish()

    def _ends_at_close(self) -> bool:
        return not {b"content-length", b"transfer-encoding"} & self._headers.keys()

    def _finish(self) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        answer.complete(self._now_s)
        self._wake()

    def _fail(self, reason: str, detail: str) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        answer.fail(reason, time.monotonic(), detail)
        self._wake()

    def _wake(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _release(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._keep_alive and not self._excess:
            self._on_free(self)
        else:
            self._transport.close()
