"""A live leaf's own requests: what servers see of them, where they are counted, and that they end however they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dlbctl.core.events import Explore
from dlbctl.core.news import EndpointNews, News
from dlbctl.core.settings import Timeouts
from dlbctl.router.access_log import AccessLog
from dlbctl.router.metrics import Metrics

from .live import Chain, Live, chain, client_of, in_flight, on_loop, root, until
from .scripted import Connection, Script, answering, serving, sized
from .test_ledger import USAGE, endings, lines
from .test_one_process import cell
from .wire import chat, post

WANTED = Explore("m", 100, 20)


@contextlib.asynccontextmanager
async def shown(script: Script, path: str = "/v1/chat/completions", **more: Any) -> AsyncIterator[Chain]:
    """A leaf whose server has served a user at a path."""
    async with chain(script, **more) as link:
        assert (await link.client.ask(post(b'{"model":"m"}', path))).status == 200
        yield link


def explore(live: Live) -> None:
    live.router.background.explore(live.tier, WANTED)


async def over(live: Live) -> None:
    await until(lambda: not live.router.background.open)
    await live.settled()


def explored(live: Live) -> float:
    families = {family.name: family for family in Metrics(live.router).collect()}
    return sum(sample.value for sample in families["dlbctl_background_probes"].samples)


def errors(live: Live) -> tuple[float, float]:
    state = live.tier.report(live.router.clock()).endpoints["m"]
    return round(state.errors), round(state.requests)


@on_loop
async def test_a_leaf_that_is_starved_of_what_roots_want_asks_its_server_itself(tmp_path: Path) -> None:
    async with shown(answering(sized(USAGE))) as (engine, live, _):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        live.tier.pinged(live.router.clock(), "us", 0.02, News("r00t", {"m": EndpointNews(2.0)}))
        before = endings(live)
        time = asyncio.ensure_future(live.router.keep_time())
        await until(lambda: len(engine.heard) == 2, "the server was asked")
        time.cancel()
        await over(live)
        assert endings(live) == before, "it counts among no user's requests"
        assert live.tier.endpoints["m"].received == {}
        assert (explored(live), errors(live)) == (1, (0, 2))
    heard = engine.heard[1]
    assert (heard.url, heard.get(b"dlb-probe")) == (b"/v1/chat/completions", b"background")
    assert (heard.get(b"x-request-id") or b"").startswith(b"probe-")
    (line,) = lines(tmp_path / "log")
    assert (line["kind"], line["id"], line["code"], line["server"], line["tokens_out"]) == (
        "probe",
        (heard.get(b"x-request-id") or b"").decode(),
        "ok",
        "s",
        7,
    )


@pytest.mark.parametrize(("path", "text"), [("/v1/chat/completions", "messages"), ("/v1/completions?n=1", "prompt")])
@on_loop
async def test_it_asks_as_its_users_did_and_for_as_much_as_is_wanted(path: str, text: str) -> None:
    async with shown(answering(sized(USAGE)), path) as (engine, live, _):
        explore(live)
        explore(live)
        await over(live)
    bodies = [json.loads(heard.body) for heard in engine.heard[1:]]
    assert [heard.url.decode() for heard in engine.heard[1:]] == [path.partition("?")[0]] * 2
    for body in bodies:
        assert (body["model"], body["max_tokens"]) == ("m", WANTED.output_tokens)
        prompt = body[text] if text == "prompt" else body[text][0]["content"]
        assert len(prompt) == pytest.approx(4 * WANTED.prompt_tokens, abs=100)
    assert bodies[0] != bodies[1], "the server would have it in its cache"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/generate"])
@on_loop
async def test_what_users_ask_for_otherwise_is_not_imitated(path: str) -> None:
    async with shown(answering(sized(b"{}")), path) as (engine, live, _):
        explore(live)
        assert (len(engine.heard), live.tier.endpoints["m"].explored) == (1, 0)


@on_loop
async def test_nothing_is_asked_before_a_user_was_served_nor_by_a_leaf_that_stops() -> None:
    async with chain(answering(sized(USAGE))) as (engine, live, client):
        explore(live)
        await client.ask(chat())
        live.router.unready()
        explore(live)
        assert len(engine.heard) == 1


def once_well_then(*answers: bytes | None) -> Script:
    """Each request gets the next of the answers; an empty one closes the connection, None is silence."""
    left = [sized(USAGE), *answers]

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            answer = left.pop(0)
            if answer is None:
                await connection.left()
            if not answer:
                return
            await connection.send(answer)

    return script


@pytest.mark.parametrize(
    "answer",
    [
        sized(b"{}", status=b"500 Oh"),
        sized(b"{}", status=b"503 Busy"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}",
        b"nonsense\r\n\r\n",
    ],
    ids=["an error", "busy", "broken off", "no HTTP"],
)
@on_loop
async def test_one_that_ends_badly_is_an_error_of_the_cell_and_of_nobody(answer: bytes) -> None:
    async with shown(once_well_then(answer)) as (engine, live, _):
        before = endings(live)
        explore(live)
        await until(lambda: len(engine.heard) == 2)
        if b"length: 10" in answer:
            await until(lambda: any(exploring._record.begun_s for exploring in live.router.background.open))
            await engine.connections[0].close()
        await over(live)
        assert (endings(live), errors(live)) == (before, (1, 2))


@on_loop
async def test_a_server_that_had_closed_its_connection_is_asked_on_another() -> None:
    async with shown(once_well_then(b"", sized(USAGE))) as (engine, live, _):
        explore(live)
        await over(live)
        assert (len(engine.heard), errors(live)) == (3, (0, 2))


@on_loop
async def test_a_server_that_is_silent_for_too_long_is_given_up() -> None:
    async with shown(once_well_then(None), timeouts=Timeouts(first_byte_s=0.2)) as (_, live, _):
        explore(live)
        assert in_flight(live.tier) > 0
        live.router.audit.look()
        await over(live)
        assert errors(live) == (1, 2)


@on_loop
async def test_a_leaf_that_ends_lets_go_of_it() -> None:
    async with shown(once_well_then(None)) as (engine, live, _):
        explore(live)
        await until(lambda: len(engine.heard) == 2)
        live.router.background.close()
        await over(live)
        assert errors(live) == (0, 1)


@on_loop
async def test_a_root_tells_the_cells_of_its_own_process_and_these_try_themselves() -> None:
    async with (
        serving(answering(sized(USAGE))) as engine,
        root([], local=[cell("eu", engine.port)]) as live,
        client_of(live) as client,
    ):
        assert (await client.ask(chat())).status == 200
        live.router.tell_local()
        (inner,) = live.router.local.values()
        assert inner.heard.rate_rps(live.router.clock(), "m") > 0.0
        live.router.background.explore(inner, WANTED)
        await until(lambda: not live.router.background.open)
        await live.settled()
        assert len(engine.heard) == 2
        assert live.tier.endpoints["m"].explored == 0
        assert inner.endpoints["m"].explored == 1
