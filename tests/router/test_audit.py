"""The accounting audit in a running router: it finds what leaked, and in sound traffic nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dlbctl.core.settings import TierSettings
from dlbctl.core.tier import Tier

from .live import Live, assert_idle, chain, client_of, leaf, on_loop, root, server, until
from .scripted import Connection, answering, chunk, serving, sized
from .test_upstream_faults import EVENT, STREAM_HEAD
from .wire import chat


async def streaming(connection: Connection) -> None:
    await connection.hear()
    await connection.send(STREAM_HEAD + chunk(EVENT))
    await connection.left()


@contextlib.asynccontextmanager
async def audited(live: Live) -> AsyncIterator[None]:
    """The audit at work, as in a process."""
    task = asyncio.ensure_future(live.router.audit.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def lose(live: Live) -> None:
    """Drop the one relay there is without telling a tier."""
    (relay,) = live.router.ledger.open.values()
    del live.router.ledger.open[relay.record.number]
    relay._hops = []
    relay._downstream.responder = None


@on_loop
async def test_a_relay_that_is_lost_is_taken_off_the_counts_told_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with chain(streaming) as (_, live, client), audited(live):
        await client.send(chat())
        await client.reader.readuntil(EVENT)
        lose(live)
        assert live.tier.targets["s"].in_flight == 1
        await until(lambda: live.router.audit.drift["leaf", "c1"] == 1)
        assert_idle(live.tier)
        live.router.audit.look()
        assert live.router.audit.drift["leaf", "c1"] == 1
        told = [record for record in caplog.records if record.levelname == "ERROR"]
        assert ["nobody served it" in record.getMessage() for record in told] == [True]


@on_loop
async def test_a_relay_that_is_lost_under_two_tiers_is_found_in_both() -> None:
    async with serving(streaming) as engine:
        cell = TierSettings("leaf", "eu", (server("s", engine.port),), seed=1)
        async with root([], local=[cell]) as live, client_of(live) as client:
            await client.send(chat())
            await client.reader.readuntil(EVENT)
            lose(live)
            live.router.audit.look()
            assert live.router.audit.drift == {("root", "here"): 1, ("leaf", "eu"): 1}
            for tier in live.tiers:
                assert_idle(tier)


@on_loop
async def test_a_tier_that_came_or_went_is_looked_at_for_as_long_as_it_counts() -> None:
    async with serving(streaming) as engine:
        cell = TierSettings("leaf", "eu", (server("s", engine.port),), seed=1)
        async with root([], local=[cell]) as live, client_of(live) as client:
            await client.send(chat())
            await client.reader.readuntil(EVENT)
            gone = live.router.local.pop("local:eu")
            live.router.audit.look()
            assert gone.exchanges, "still served"
            client.abort()
            await live.settled()
            live.router.local["local:us"] = Tier(TierSettings("leaf", "us", (server("s", 1),), seed=1), "boot")
            live.router.local["local:us"].targets["s"].in_flight = 1
            live.router.audit.look()
            assert live.router.audit.drift == {("root", "here"): 0, ("leaf", "eu"): 0, ("leaf", "us"): 1}


@on_loop
async def test_a_count_that_is_wrong_is_put_right_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async with leaf([server("s", 1)]) as live:
        live.tier.targets["s"].in_flight = 3
        live.router.audit.look()
        assert_idle(live.tier)
        assert "s: 3 counted, 0 open" in caplog.text


@on_loop
async def test_sound_traffic_is_never_put_right() -> None:
    """At whatever moment it looks: requests that connect, wait, stream, end and are left."""

    async def use(live: Live, model: str) -> None:
        async with client_of(live) as client:
            await client.send(chat(model))
            await client.head()

    async def look(live: Live) -> None:
        while True:
            live.router.audit.look()
            await asyncio.sleep(0)

    async with serving(streaming) as slow, serving(answering(sized(b"{}"))) as quick:
        servers = [server("slow", slow.port, "slow"), server("quick", quick.port, "quick")]
        async with leaf(servers) as live:
            looking = asyncio.ensure_future(look(live))
            for _ in range(5):
                await asyncio.gather(*(use(live, model) for model in ("slow", "quick", "quick") * 10))
            looking.cancel()
            await live.settled()
