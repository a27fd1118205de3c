"""Routers in the test's own event loop, on ports of their own, put together from the parts a process uses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, cast

import pytest
import uvloop
from uvicorn.server import ServerState

from dlbctl.core.settings import (
    EndpointSettings,
    HealthSettings,
    QueueSettings,
    RetrySettings,
    TargetSettings,
    TierSettings,
    Timeouts,
)
from dlbctl.core.tier import Tier
from dlbctl.router.lifecycle import BACKLOG
from dlbctl.router.limits import HttpLimits
from dlbctl.router.listener import Listener, PeerListener
from dlbctl.router.pace import Pace
from dlbctl.router.router import Router
from dlbctl.router.served import ServedCell
from dlbctl.router.state_stream import StatePublisher
from dlbctl.router.wheel import NEVER

from .scripted import Script, ScriptedServer, serving
from .wire import Client

P = ParamSpec("P")
TEST_LIMIT_S = 30.0
REPORT_S = 0.01


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test on an uvloop of its own, as the routers run."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TEST_LIMIT_S):
                await test(*args, **kwargs)

        uvloop.run(limited())

    return run


async def until(true: Callable[[], bool], what: str = "") -> None:
    """Yield to the loop until a condition holds; the test's own time limit ends a vain wait."""
    try:
        while not true():
            await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        raise AssertionError(f"never came true: {what or true}") from None


@dataclass
class Live:
    """A running router. counts_zero: nothing is in flight anywhere in any of its tiers."""

    router: Router
    served: list[ServedCell] = field(default_factory=list)
    port: int = 0
    peer_port: int = 0
    connections: set[Any] = field(default_factory=set)

    @property
    def tier(self) -> Tier:
        return self.router.tier

    @property
    def tiers(self) -> list[Tier]:
        return [self.router.tier, *self.router.local.values()]

    def counts_zero(self) -> bool:
        return all(in_flight(tier) == 0 for tier in self.tiers)

    def upstreams_in_use(self) -> int:
        """Connections to servers and leaves that are busy or being made; those idle in their pool are not."""
        pools = self.router._pools.values()
        return sum(len(pool.open) - len(pool.idle) + len(pool._tasks) for pool in pools)

    async def settled(self) -> None:
        """Wait until nothing is counted and no socket in use, then check every counter there is."""
        await until(lambda: not any(tier.exchanges for tier in self.tiers), "no exchange is open")
        await until(lambda: not self.upstreams_in_use(), "no upstream connection is in use")
        assert self.router.ledger.open == {}
        for tier in self.tiers:
            assert_idle(tier)
        await until(lambda: self.router.body_bytes == 0, "no body is kept")
        assert_no_drift(self.router)

    async def client(self) -> Client:
        return await Client.connect(self.port)


def in_flight(tier: Tier) -> int:
    return len(tier.exchanges) + sum(target.in_flight for target in tier.targets.values())


def assert_idle(tier: Tier) -> None:
    """Every count of a tier is exactly zero: neither leaked nor taken back twice."""
    assert tier.exchanges == {}
    assert {name: target.in_flight for name, target in tier.targets.items()} == dict.fromkeys(tier.targets, 0)
    for endpoint in tier.endpoints.values():
        assert endpoint.in_flight == 0, endpoint
        assert endpoint.rif == 0, endpoint
        for candidate in endpoint.candidates.values():
            assert candidate.in_flight == 0, candidate
            assert candidate.work_s == 0.0, candidate


def assert_no_drift(router: Router) -> None:
    """The tiers count what relays hold, now and whenever the audit has looked."""
    router.audit.look()
    assert not any(router.audit.drift.values())


async def _open(stack: contextlib.AsyncExitStack, listener: Listener, state: ServerState, port: int = 0) -> int:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: listener.protocol(server_state=state), "127.0.0.1", port, reuse_address=True, backlog=BACKLOG
    )
    stack.push_async_callback(server.wait_closed)
    stack.callback(server.close)
    return cast("int", server.sockets[0].getsockname()[1])


# A full leaf then says no at once, which is what most tests are about.
NO_QUEUE = QueueSettings(size=0)


def server(name: str, port: int, *models: str, slots: int = 0) -> TargetSettings:
    """A leaf's target on loopback that serves the models (`m` by default)."""
    return TargetSettings(name, (f"http://127.0.0.1:{port}",), models or ("m",), slots=slots)


@contextlib.asynccontextmanager
async def leaf(
    servers: Sequence[TargetSettings],
    *,
    cell: str = "c1",
    up: bool = True,
    limits: HttpLimits | None = None,
    timeouts: Timeouts | None = None,
    endpoints: Sequence[EndpointSettings] = (),
    half_close: bool = False,
    token: bytes = b"",
    peer_port: int = 0,
    queue: QueueSettings = NO_QUEUE,
    retries: RetrySettings | None = None,
    health: HealthSettings | None = None,
    accept_priority: bool = False,
    upstream_idle_s: float = NEVER,
) -> AsyncIterator[Live]:
    """A leaf with a client and a peer listener. up: its servers are known to answer, without being asked."""
    settings = TierSettings(
        "leaf",
        cell,
        tuple(servers),
        tuple(endpoints),
        timeouts or Timeouts(),
        seed=1,
        queue=queue,
        retries=retries or RetrySettings(),
        health=health or HealthSettings(),
    )
    router = Router(
        Tier(settings, f"boot-{cell}"),
        {},
        asyncio.get_running_loop(),
        token=token,
        accept_priority=accept_priority,
    )
    router.limit_idle(upstream_idle_s)
    if up:
        mark_up(router.tier)
    async with _running(router, limits or HttpLimits(), half_close=half_close, peer_port=peer_port) as live:
        live.served = [ServedCell(router.tier, None, router)]
        yield live


@contextlib.asynccontextmanager
async def root(
    cells: Sequence[TargetSettings],
    *,
    local: Sequence[TierSettings] = (),
    limits: HttpLimits | None = None,
    timeouts: Timeouts | None = None,
    endpoints: Sequence[EndpointSettings] = (),
    token: bytes = b"",
) -> AsyncIterator[Live]:
    """A root. local: leaf tiers in its own process, each a cell `local:NAME`, their servers known to answer."""
    targets = (*cells, *(TargetSettings(leaf.cell, (f"local:{leaf.cell}",)) for leaf in local))
    settings = TierSettings("root", "here", targets, tuple(endpoints), timeouts or Timeouts(), seed=1)
    inner = {f"local:{leaf.cell}": Tier(leaf, "boot-root") for leaf in local}
    router = Router(Tier(settings, "boot-root"), inner, asyncio.get_running_loop(), token=token)
    for tier in inner.values():
        mark_up(tier)
        report = tier.report(router.clock())
        router.tier.state_reported(router.clock(), tier.settings.cell, f"local:{tier.settings.cell}", report, 0.0)
    pace = Pace(router.loop, router.report_local, REPORT_S)
    router.changed = pace.changed
    try:
        async with _running(router, limits or HttpLimits(), half_close=False) as live:
            live.served = [ServedCell(tier, None, router) for tier in inner.values()]
            yield live
    finally:
        pace.stop()


def mark_up(tier: Tier) -> None:
    """Tell a tier that all its targets answer."""
    for target in tier.targets.values():
        for address in target.addresses:
            tier.address_changed(0.0, target.name, address, True)


@contextlib.asynccontextmanager
async def _running(router: Router, limits: HttpLimits, *, half_close: bool, peer_port: int = 0) -> AsyncIterator[Live]:
    state = ServerState()
    live = Live(router, connections=state.connections)
    async with contextlib.AsyncExitStack() as stack:
        live.port = await _open(stack, Listener(router, limits, half_close=half_close), state)
        peers = PeerListener(router, limits, half_close=half_close)
        publisher = StatePublisher(router)
        peers.add(b"/dlb/v1/state", publisher.serve)
        live.peer_port = await _open(stack, peers, state, peer_port)
        try:
            yield live
        finally:
            for connection in list(state.connections):
                connection.transport.abort()
            await until(lambda: not state.connections)
            router.close()


@contextlib.asynccontextmanager
async def client_of(live: Live) -> AsyncIterator[Client]:
    """A client connection for the length of a block."""
    client = await live.client()
    try:
        yield client
    finally:
        client.abort()


class Chain(NamedTuple):
    """A server, a leaf in front of it and a client of the leaf."""

    engine: ScriptedServer
    live: Live
    client: Client


@contextlib.asynccontextmanager
async def chain(
    script: Script,
    *,
    limits: HttpLimits | None = None,
    timeouts: Timeouts | None = None,
    half_close: bool = False,
) -> AsyncIterator[Chain]:
    """One scripted server `s` for the model `m` behind a leaf, and a client."""
    async with (
        serving(script) as engine,
        leaf([server("s", engine.port)], limits=limits, timeouts=timeouts, half_close=half_close) as live,
        client_of(live) as client,
    ):
        yield Chain(engine, live, client)


def allow_files(number: int) -> None:
    """Every connection of a test has both its ends in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        if hard < number and hard != resource.RLIM_INFINITY:
            pytest.skip(f"needs {number} open files, and {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
