"""What the cases share: answers and streams, servers that hold them back, and what a tier has counted."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from dlbctl.core.target import Candidate
from tests.router.live import Live, client_of
from tests.router.scripted import Held, chunk, sized
from tests.router.wire import Answer, Client, chat

OK = sized(b'{"choices":[]}')
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def held_stream() -> Held:
    """A server that streams one event at once, and the last when it may."""
    return Held(STREAM_HEAD + chunk(EVENT), chunk(DONE) + END)


def candidate(live: Live, server: str = "s") -> Candidate:
    """The server `s` (or another) for the model `m` in the innermost tier."""
    return live.tiers[-1].endpoints["m"].candidates[server]


def totals(live: Live, server: str = "s") -> tuple[int, int]:
    """Requests and errors counted for a server of late."""
    counted = candidate(live, server)
    now_s = live.router.clock()
    return round(counted.requests.read(now_s)), round(counted.errors.read(now_s))


async def ask(live: Live, request: bytes = b"") -> Answer:
    """One request on a connection of its own, for `m` unless another is given."""
    async with client_of(live) as client:
        return await client.ask(request or chat())


@contextlib.asynccontextmanager
async def clients_of(live: Live, number: int) -> AsyncIterator[list[Client]]:
    """So many client connections for the length of a block."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(client_of(live)) for _ in range(number)]


def servers_of(answers: Iterable[Answer]) -> Counter[bytes | None]:
    """How many of the answers came from which server."""
    return Counter(answer.get(b"x-dlb-server") for answer in answers)


def code_of(answer: Answer) -> tuple[int, str]:
    """Status and error code of an answer of the router's own."""
    return answer.status, json.loads(answer.body)["error"]["code"]
