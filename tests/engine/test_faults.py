from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvloop

from dlbctl.engine.faults import Faults

if TYPE_CHECKING:
    from tests.engine.conftest import Live, Running

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "ignore_eos": True}


async def ask(live: Live) -> int:
    return (await live.client.post("/v1/chat/completions", json=BODY)).status_code


async def set_faults(live: Live, **faults: Any) -> dict[str, Any]:
    answer = await live.client.post("/debug/faults", json=faults)
    assert answer.status_code == 200
    state: dict[str, Any] = answer.json()
    return state


def test_faults_change_live_and_keep_what_is_not_named(running: Running) -> None:
    async def scenario() -> None:
        async with running(faults=Faults(hang_rate=0.25)) as live:
            await set_faults(live, slowdown=3)
            assert live.server.model.slowdown == 3
            assert await set_faults(live) == {
                "error_rate": 0.0,
                "hang_rate": 0.25,
                "slowdown": 3.0,
                "down": False,
                "crash_after": 0,
            }

    uvloop.run(scenario())


def test_errors_strike_about_the_share_asked_for(running: Running) -> None:
    async def scenario() -> None:
        async with running(time_factor=100) as live:
            await set_faults(live, error_rate=0.3)
            statuses = [await ask(live) for _ in range(200)]
            # The seed fixes it; 200 draws at .3 have a standard deviation of 6.5.
            assert 40 <= statuses.count(500) <= 80
            assert set(statuses) == {200, 500}
            await set_faults(live, error_rate=0)
            assert await ask(live) == 200

    uvloop.run(scenario())


def test_a_hung_request_holds_nothing_and_others_go_on(running: Running) -> None:
    async def scenario() -> None:
        async with running() as live:
            await set_faults(live, hang_rate=1)
            hung = asyncio.ensure_future(ask(live))
            while live.server.requests == 0:
                await live.client.get("/health")
            await set_faults(live, hang_rate=0)
            assert await ask(live) == 200
            assert not hung.done()
            hung.cancel()
            assert live.server.model.running == 0

    uvloop.run(scenario())


def test_down_cuts_streams_and_new_requests_until_it_is_up_again(running: Running) -> None:
    async def scenario() -> None:
        async with running() as live:
            stream = {**BODY, "max_tokens": 60000, "stream": True}
            async with live.client.stream("POST", "/v1/chat/completions", json=stream) as answer:
                await set_faults(live, down=True)
                with pytest.raises(httpx.TransportError):
                    await answer.aread()
            with pytest.raises(httpx.TransportError):
                await ask(live)
            with pytest.raises(httpx.TransportError):
                await live.client.get("/health")
            assert live.server.model.running == 0
            await set_faults(live, down=False)
            assert await ask(live) == 200

    uvloop.run(scenario())


def test_the_connection_that_takes_an_engine_down_can_bring_it_back(running: Running) -> None:
    async def scenario() -> None:
        async with running() as live:
            reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
            for body in (b'{"down": true}', b'{"down": false}'):
                writer.write(b"POST /debug/faults HTTP/1.1\r\nhost: x\r\n")
                writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
                assert await reader.readuntil(b"}")
            writer.close()
            assert await ask(live) == 200

    uvloop.run(scenario())


def test_a_crash_takes_the_listener_and_every_connection(running: Running) -> None:
    async def scenario() -> None:
        async with running(faults=Faults(crash_after=2)) as live:
            assert [await ask(live), await ask(live)] == [200, 200]
            with pytest.raises(httpx.TransportError):
                await ask(live)
            assert live.server.crashed.done()
            with pytest.raises(httpx.ConnectError):
                await live.client.get("/health")

    uvloop.run(scenario())
