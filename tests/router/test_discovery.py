"""A leaf asks its servers what they serve, and notices by that which of them are there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from dlbctl.core.settings import HealthSettings, TargetSettings
from dlbctl.router.discovery import Discovery

from .live import Live, client_of, leaf, on_loop, until
from .scripted import Connection, answering, refusing_port, serving, sized
from .wire import Client, chat, get

# The default interval is for servers that work, not for tests that wait.
OFTEN = HealthSettings(interval_s=0.2)


def learning(name: str, port: int) -> TargetSettings:
    """A server that is asked what it serves."""
    return TargetSettings(name, (f"http://127.0.0.1:{port}",))


def models(*names: str) -> bytes:
    return sized(json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())


@contextlib.asynccontextmanager
async def discovering(
    servers: Sequence[TargetSettings], health: HealthSettings = OFTEN
) -> AsyncIterator[tuple[Live, Client]]:
    async with leaf(servers, up=False, health=health) as live, client_of(live) as client:
        task = asyncio.ensure_future(Discovery(live.tier, live.router.clock).run())
        try:
            yield live, client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def listed(client: Client) -> list[str]:
    answer = await client.ask(get("/v1/models"))
    assert answer.status == 200
    return [model["id"] for model in json.loads(answer.body)["data"]]


@on_loop
async def test_models_are_merged_and_a_dead_server_spoils_nothing() -> None:
    """Case 17."""
    with refusing_port() as dead:
        async with serving(answering(models("b", "a"))) as one, serving(answering(models("b", "c"))) as two:
            servers = [learning("dead", dead), learning("one", one.port), learning("two", two.port)]
            async with discovering(servers) as (live, client):
                await until(lambda: live.tier.models() == ["a", "b", "c"])
                assert await listed(client) == ["a", "b", "c"]
                assert (await client.ask(get("/readyz"))).status == 200
                assert len(live.tier.endpoints["b"].routable) == 2


@on_loop
async def test_readiness_follows_the_servers_and_comes_back_by_itself() -> None:
    """Case 16: liveness does not; case 12: a server without metrics is routable at once."""
    with refusing_port() as port:
        async with discovering([learning("s", port)]) as (live, client):
            await asyncio.sleep(0)
            refused = await client.ask(get("/readyz"))
            assert (refused.status, refused.body) == (503, b"nothing is routable\n")
            assert (await client.ask(get("/livez"))).status == 200
            assert await listed(client) == []
            assert (await client.ask(chat())).status == 503  # a client would not try a 404 again
    async with discovering([learning("s", port)]) as (live, client):
        async with serving(answering(models("m")), port=port):
            await until(live.router.routable)
            assert (await client.ask(get("/readyz"))).status == 200
        await until(lambda: not live.router.routable())
        assert (await client.ask(get("/readyz"))).status == 503
        answer = await client.ask(chat())
        assert (answer.status, answer.get(b"retry-after")) == (503, b"1")
        async with serving(answering(models("m")), port=port):
            await until(live.router.routable)
            assert (await client.ask(chat())).status == 200


@on_loop
async def test_a_model_that_is_loaded_later_is_found() -> None:
    answers = [models("m"), models("m", "lora")]

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await connection.send(answers[0])
            if len(answers) > 1:
                answers.pop(0)

    async with serving(script) as engine, discovering([learning("s", engine.port)]) as (live, _):
        await until(lambda: live.tier.models() == ["m"])
        await until(lambda: live.tier.models() == ["lora", "m"])


@pytest.mark.parametrize(
    "answer",
    [
        sized(b"loading", status=b"503 Service Unavailable"),
        sized(b"not json"),
        sized(b"[1]"),
        sized(b'{"data":7}'),
        sized(b'{"data":[7]}'),
        sized(b'{"data":[{"id":"a\\nb"},{"id":""}]}'),
        sized(b"\xff\xfe"),
        sized(b"[" * 100_000),
        sized(b"x", extra=b"content-encoding: gzip\r\n"),
        b"nonsense\r\n\r\n",
    ],
)
@on_loop
async def test_a_server_that_cannot_say_what_it_serves_is_asked_again(answer: bytes) -> None:
    healthy = False

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await connection.send(models("m") if healthy else answer)

    async with serving(script) as engine, discovering([learning("s", engine.port)]) as (live, _):
        await until(lambda: len(engine.heard) == 1)
        assert not live.router.routable()
        healthy = True
        await until(live.router.routable)
        assert live.tier.models() == ["m"]


@on_loop
async def test_one_missed_answer_of_a_living_server_is_no_death() -> None:
    """Case 22."""
    misses = 0

    async def script(connection: Connection) -> None:
        nonlocal misses
        while True:
            heard = await connection.hear()
            if len(connection.server.heard) > 1 and misses < 1:
                misses += 1
                connection.reset()
                return
            assert heard.url == b"/v1/models"
            await connection.send(models("m"))

    async with serving(script) as engine, discovering([learning("s", engine.port)]) as (live, _):
        await until(live.router.routable)
        await until(lambda: misses == 1)
        while len(engine.heard) < 3:
            assert live.router.routable()
            await asyncio.sleep(0.01)
