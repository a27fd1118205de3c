"""A small OpenAI-like server on real sockets, told how to answer: well, or badly in a chosen way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl

USAGE = {"prompt_tokens": 1100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 512}}


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, object]


@dataclass
class Exchange:
    """The server's side of one request: what came, and where the answer goes."""

    request: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    released: asyncio.Event

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: str = "200 OK", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def stream_head(self, **headers: str) -> None:
        await self.head(content_type="text/event-stream", transfer_encoding="chunked", **headers)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def text(self, text: str) -> None:
        await self.chunk(event({"choices": [{"delta": {"content": text}}]}))

    async def document(self, status: str, document: object) -> None:
        body = json.dumps(document).encode()
        await self.head(status, content_type="application/json", content_length=str(len(body)))
        await self.send(body)


Behaviour = Callable[[Exchange], Awaitable[None]]


def event(document: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(document).encode()


async def well(exchange: Exchange) -> None:
    """A whole stream, or the whole document where none was asked for."""
    names = {
        "x_dlb_cell": "us",
        "x_dlb_server": f"s{exchange.number % 2}",
        "x_request_id": f"r{exchange.number}",
    }
    if not exchange.request.body["stream"]:
        await exchange.document("200 OK", {"choices": [], "usage": USAGE})
        return
    await exchange.stream_head(**names)
    for text in ("one", " two", " three"):
        await exchange.text(text)
    await exchange.chunk(event({"choices": [], "usage": USAGE}))
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.send(b"0\r\n\r\n")


@dataclass
class FakeServer:
    """Runs in a thread of its own; `answers` says how, request by request, the last one for all the rest."""

    answers: list[Behaviour] = field(default_factory=lambda: [well])
    models: list[str] = field(default_factory=lambda: ["m"])
    tls: ssl.SSLContext | None = None
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    port: int = 0
    seen: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        # A connection accepted just now is a task of the loop's own first, and is lost if the server closes meanwhile.
        while accepting := asyncio.all_tasks() - self._tasks - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A transport is closed a turn of the loop after it was asked to be.
        for writer in self._writers:
            writer.transport.abort()
        while self._open():
            await asyncio.sleep(0)

    def _open(self) -> bool:
        sockets = (writer.get_extra_info("socket") for writer in self._writers)
        return any(sock is not None and sock.fileno() >= 0 for sock in sockets)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                await self._answer(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.path.endswith("/v1/models"):
            exchange = Exchange(request, reader, writer, -1, self._stop)
            await exchange.document("200 OK", {"data": [{"id": name} for name in self.models]})
            return
        number = len(self.requests)
        self.requests.append(request)
        self.seen.set()
        answer = self.answers[min(number, len(self.answers) - 1)]
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await answer(Exchange(request, reader, writer, number, self._stop))
        finally:
            self.in_flight -= 1


async def _read(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(first.split(" ")[1], headers, json.loads(body) if body else {})
