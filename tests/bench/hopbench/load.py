"""The load generator: keep-alive connections in a closed loop, every answer compared whole."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools
import uvloop

from hopbench import traffic

_TIMEOUT_S = 120.0


class WrongAnswerError(Exception):
    """A client got something else than the upstream sent for its request."""


class Run:
    """The requests still to send and the latencies seen; its connections share it."""

    def __init__(self, kind: traffic.Kind, requests: int, finished: asyncio.Future[None]) -> None:
        self.kind = kind
        self.latencies_s: list[float] = []
        self._requests = requests
        self._sent = 0
        self._finished = finished

    def take(self) -> int | None:
        """The number of the next request to send, None when all are sent."""
        if self._sent == self._requests:
            return None
        self._sent += 1
        return self._sent - 1

    def passed(self, latency_s: float) -> None:
        self.latencies_s.append(latency_s)
        if len(self.latencies_s) == self._requests and not self._finished.done():
            self._finished.set_result(None)

    def failed(self, what: str) -> None:
        if not self._finished.done():
            self._finished.set_exception(WrongAnswerError(what))


class Client(asyncio.Protocol):
    """One connection: a request at a time, a parser for each answer."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lost = asyncio.get_running_loop().create_future()
        self._number: int | None = None
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set_result(None)
        if self._number is not None:
            self._run.failed(f"request {self._number}: the connection ended before the answer did ({exc})")

    async def leave(self) -> None:
        """Close the connection, whatever it is doing, and wait until it is closed."""
        self._transport.abort()
        await self._lost

    def _send_next(self) -> None:
        self._number = self._run.take()
        if self._number is None:
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        request = traffic.request(self._run.kind, self._number)
        self._sent_s = time.perf_counter()  # before the write: the peer may run before it returns
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._run.failed(f"request {self._number}: not HTTP: {error}")
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        latency_s = time.perf_counter() - self._sent_s
        fault = self._fault()
        if fault:
            self._run.failed(f"request {self._number}: {fault}")
            return
        self._number = None
        self._run.passed(latency_s)
        asyncio.get_running_loop().call_soon(self._send_next)

    def _fault(self) -> str:
        """What is wrong with the answer; empty when it is the expected one, whole."""
        assert self._number is not None
        status, body = self._parser.get_status_code(), b"".join(self._body)
        if status != 200:
            return f"status {status}: {body[:200]!r}"
        if not self._parser.should_keep_alive():
            return "the connection is not kept alive"
        expected = traffic.answer(self._run.kind, self._number)
        if body == expected:
            return ""
        if self._run.kind.streams and not body.endswith(b"data: [DONE]\n\n"):
            return f"the stream lacks its [DONE]: ... {body[-80:]!r}"
        return f"{len(body)} bytes that differ from the expected {len(expected)}: {body[:200]!r}"


async def _drive(port: int, kind: traffic.Kind, connections: int, requests: int) -> list[float]:
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()
    run = Run(kind, requests, finished)
    clients: list[Client] = []
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            for _ in range(connections):
                _, client = await loop.create_connection(lambda: Client(run), "127.0.0.1", port)
                clients.append(client)
            await finished
    finally:
        await asyncio.gather(*(client.leave() for client in clients))
    return run.latencies_s


def drive(port: int, kind: traffic.Kind, connections: int, requests: int) -> list[float]:
    """Send `requests` over `connections`; each one's latency in seconds, to the last byte.

    Raises WrongAnswerError on the first answer that is not byte for byte the upstream's, OSError when
    nothing listens, TimeoutError when the answers do not come.
    """
    return uvloop.run(_drive(port, kind, connections, requests))
