"""Engines on real sockets for the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from dlbctl.engine.lag import LoopLag
from dlbctl.engine.process import address, bind
from dlbctl.engine.profile import Profile
from dlbctl.engine.server import EngineOptions, EngineServer


@dataclass(frozen=True)
class Live:
    """An engine that listens, and a client for it."""

    server: EngineServer
    url: str
    client: httpx.AsyncClient

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def metric(self, name: str) -> float:
        """The value of a metric, by its full name without labels."""
        lines = (await self.client.get("/metrics")).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))

    async def until(self, name: str, value: float) -> None:
        """Returns when a metric has the value; the test's timeout bounds it."""
        while await self.metric(name) != value:
            pass


Running = Callable[..., AbstractAsyncContextManager[Live]]


@pytest.fixture
def profile() -> Profile:
    """A quick engine: 1 ms steps."""
    return Profile(
        name="quick",
        max_num_seqs=4,
        max_batch_tokens=256,
        max_model_tokens=65536,
        kv_blocks=8192,
        step_base_s=0.001,
        prefill_token_s=0.00001,
        decode_seq_s=0.0,
        context_token_s=0.0,
        mean_output_tokens=20.0,
    )


@pytest.fixture
def running(profile: Profile) -> Running:
    """Starts an engine on a free port: `async with running(queue_limit=1) as live`."""

    @contextlib.asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[Live]:
        loop = asyncio.get_running_loop()
        lag = LoopLag(loop)
        server = EngineServer(profile, EngineOptions(**options), loop, lag)
        (sock,) = bind("127.0.0.1", 0, 1)
        await server.listen(sock)
        url = address(sock)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as client:
                yield Live(server, url, client)
        finally:
            server.stop()
            lag.stop()

    return start
