"""What the data path relies on in uvicorn, of which only one minor is allowed: this is the contract."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from dlbctl.router.lifecycle import bind, hosted
from dlbctl.router.run import no_app

from .live import on_loop, until
from .wire import Client


class Recorder(asyncio.Protocol):
    """A protocol that notes what uvicorn does with it."""

    def __init__(self, made: list[Recorder], keywords: dict[str, Any]) -> None:
        self.keywords = keywords
        self.asked_to_stop = 0
        made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.keywords["server_state"].connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.keywords["server_state"].connections.discard(self)

    def shutdown(self) -> None:
        self.asked_to_stop += 1


def test_the_minor_is_the_one_that_was_read() -> None:
    assert uvicorn.__version__.startswith("0.54.")


@on_loop
async def test_uvicorn_calls_our_maker_and_waits_for_our_connections() -> None:
    made: list[Recorder] = []
    sock = bind("t", "127.0.0.1:0")
    server = hosted(no_app, protocol=lambda **keywords: Recorder(made, keywords))
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    await until(lambda: server.started)
    port = sock.getsockname()[1]
    one, two = [await Client.connect(port) for _ in range(2)]
    await until(lambda: len(made) == 2)

    assert set(made[0].keywords) == {"config", "server_state", "app_state", "_loop"}
    assert made[0].keywords["server_state"] is server.server_state
    assert server.server_state.connections == set(made)

    server.stop()
    await until(lambda: all(recorder.asked_to_stop == 1 for recorder in made))
    assert sock.fileno() == -1, "no further connection is accepted"
    assert not serving.done(), "it waits for those that are left"
    for recorder in made:
        recorder.transport.close()
    await serving
    assert all(recorder.asked_to_stop == 1 for recorder in made)
    one.abort()
    two.abort()
