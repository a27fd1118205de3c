"""An inference server that costs almost nothing: `python -m hopbench.upstream` prints its two ports.

Two ports make a proxy choose; one process behind them keeps the machine's cores for what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import httptools
import uvloop

from hopbench import traffic

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _document(value: object) -> bytes:
    body = json.dumps(value).encode()
    return _JSON_HEAD % len(body) + body


_MODELS = _document(
    {"object": "list", "data": [{"id": traffic.MODEL, "object": "model", "created": 1, "owned_by": "bench"}]}
)
# What the peer routers ask a server before they send it anything.
_MODEL_INFO = _document(
    {"model_path": traffic.MODEL, "tokenizer_path": "", "is_generation": True, "model_type": "llama"}
)
_EMPTY = _document({})


class Server(asyncio.Protocol):
    """One connection: answers chat requests by their tag, and everything else with something plausible."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._frames: list[bytes] = []
        self._pace_s = 0.0
        self._writable = True
        self._next: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._frames = []

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._next is None:
            self._write_frame()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url == traffic.PATH:
            self._answer(traffic.tag_in(self._body))
        elif self._url.startswith(b"/v1/models"):
            self._transport.write(_MODELS)
        elif b"model_info" in self._url:
            self._transport.write(_MODEL_INFO)
        else:
            self._transport.write(_EMPTY)

    def _answer(self, mark: bytes) -> None:
        kind = traffic.Kind(mark[:1].decode())
        if not kind.streams:
            body = traffic.completion(mark)
            self._transport.write(_JSON_HEAD % len(body) + body)
            return
        self._transport.write(_SSE_HEAD)
        self._pace_s = traffic.PACE_S if kind is traffic.Kind.PACED else 0.0
        self._frames = [b"%x\r\n%b\r\n" % (len(event), event) for event in traffic.events(mark)]
        self._frames[-1] += b"0\r\n\r\n"
        self._frames.reverse()
        self._write_frame()

    def _write_frame(self) -> None:
        """Write the next event, and have the one after it written a pace later."""
        self._next = None
        if not self._frames or not self._writable:
            return
        self._transport.write(self._frames.pop())
        loop = asyncio.get_running_loop()
        if self._pace_s:
            self._next = loop.call_later(self._pace_s, self._write_frame)
        else:
            self._next = loop.call_soon(self._write_frame)


async def serve() -> None:
    """Listen on two free ports, print them, and serve until killed."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Server, "127.0.0.1", 0, backlog=4096) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print("upstreams", *ports, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    sys.exit(uvloop.run(serve()))
