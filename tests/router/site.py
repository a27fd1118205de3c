"""A root that serves a cell itself, or a root with a leaf behind it: both have to do the same for a client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from dlbctl.core.settings import TierSettings, Timeouts
from tests.fault_relay import FaultRelay, relayed

from .live import Live, client_of, leaf, root, server, until
from .scripted import Script, ScriptedServer, serving
from .test_peers import cell, probing
from .wire import Answer, chat

both = pytest.mark.parametrize("shape", ["one process", "root and leaf"])


@dataclass(frozen=True)
class Site:
    """Routers in front of a relay in front of a scripted server. front: where clients connect."""

    engine: ScriptedServer
    relay: FaultRelay
    routers: tuple[Live, ...]

    @property
    def front(self) -> Live:
        return self.routers[0]

    @property
    def last(self) -> Live:
        """The router that asks the server."""
        return self.routers[-1]

    async def ask(self, request: bytes = b"") -> Answer:
        """One request on a connection of its own, for `m` unless another is given."""
        async with client_of(self.front) as client:
            return await client.ask(request or chat())

    async def settled(self) -> None:
        for live in self.routers:
            await live.settled()

    async def left(self) -> None:
        """Nothing is counted, and no connection to the server is open."""
        await self.settled()
        await until(lambda: not self.relay.carried, "no connection to the server is open")


@contextlib.asynccontextmanager
async def site(shape: str, script: Script, timeouts: Timeouts | None = None) -> AsyncIterator[Site]:
    """Such a site, whose one server serves `m`. timeouts: of the tier that asks it."""
    async with serving(script) as engine, relayed(engine.port) as relay:
        target = server("s", relay.port)
        if shape == "one process":
            local = TierSettings("leaf", "eu", (target,), timeouts=timeouts or Timeouts(), seed=1)
            async with root([], local=[local]) as front:
                yield Site(engine, relay, (front,))
        else:
            async with (
                leaf([target], cell="eu", timeouts=timeouts) as behind,
                probing([cell("eu", behind.peer_port)]) as front,
            ):
                await until(front.router.routable)
                yield Site(engine, relay, (front, behind))
