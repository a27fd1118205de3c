"""Which session a request belongs to: told by its client, hashed once, and known to every tier that it meets."""

from __future__ import annotations

import pytest

from dlbctl.core.session import session_of
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.tier import Tier

from .live import client_of, leaf, on_loop, root, server, until
from .scripted import Held, serving, sized
from .wire import Client, post

BODY = b'{"model":"m","prompt_cache_key":"of the body"}'


def sessions(tier: Tier) -> list[int]:
    """Of the requests that are open there."""
    return [exchange.arrival.session for exchange in tier.exchanges.values()]


def test_a_session_is_called_the_same_everywhere() -> None:
    """The reference value of XXH3 for "a", and none for no name."""
    assert session_of(b"a") == 0xE6C632B61E964E1F
    assert session_of(b"") == 0


@pytest.mark.parametrize(
    ("body", "extra", "name"),
    [
        (BODY, b"X-Session-Id: of the header\r\n", b"of the header"),
        (BODY, b"x-session-id: \r\n", b"of the body"),
        (BODY, b"", b"of the body"),
        (b'{"model":"m"}', b"", b""),
        (b'{"model":"m"}', b"dlb-session: 00000000000000ff\r\n", b""),  # a peer's word
    ],
)
@on_loop
async def test_a_client_names_its_session_and_leaf_and_root_know_it_by_one_hash(
    body: bytes, extra: bytes, name: bytes
) -> None:
    held = Held(b"", sized(b"{}"))
    async with (
        serving(held.script) as engine,
        leaf([server("s", engine.port)], cell="eu", token=b"k") as eu,
        root([TargetSettings("eu", (f"http://127.0.0.1:{eu.peer_port}",))], token=b"k") as live,
        client_of(live) as client,
    ):
        address = f"http://127.0.0.1:{eu.peer_port}"
        live.tier.state_reported(live.router.clock(), "eu", address, eu.tier.report(0.0), 0.0)
        await client.send(post(body, extra=extra))
        await until(lambda: len(engine.heard) == 1)
        assert sessions(live.tier) == sessions(eu.tier) == [session_of(name)]
        if extra.startswith(b"X-"):
            assert engine.heard[0].get(b"x-session-id") == name
        held.go.set()
        assert (await client.answer()).status == 200
        await live.settled()
        await eu.settled()


@on_loop
async def test_a_leaf_in_the_same_process_knows_it_too() -> None:
    held = Held(b"", sized(b"{}"))
    async with serving(held.script) as engine:
        cell = TierSettings("leaf", "eu", (server("s", engine.port),), seed=1)
        async with root([], local=[cell]) as live, client_of(live) as client:
            await client.send(post(BODY))
            await until(lambda: len(engine.heard) == 1)
            assert [sessions(tier) for tier in live.tiers] == [[session_of(b"of the body")]] * 2
            held.go.set()
            assert (await client.answer()).status == 200
            await live.settled()


@pytest.mark.parametrize(
    "said", [b"", b"ff", b"-0000000000000ff", b"0x000000000000ff", b"00000000000000fg", b"f" * 5000]
)
@on_loop
async def test_a_hash_of_a_peer_that_is_none_is_no_session(said: bytes) -> None:
    held = Held(b"", sized(b"{}"))
    async with serving(held.script) as engine, leaf([server("s", engine.port)]) as eu:
        peer = await Client.connect(eu.peer_port)
        await peer.send(post(b"{}", extra=b"dlb-endpoint: m\r\ndlb-session: %b\r\n" % said))
        await until(lambda: len(engine.heard) == 1)
        assert sessions(eu.tier) == [0]
        held.go.set()
        assert (await peer.answer()).status == 200
        peer.abort()
        await eu.settled()
