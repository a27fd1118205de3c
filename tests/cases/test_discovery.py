"""Cases 15 to 19: what is known of the targets changes, and what is served meanwhile does not suffer."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cases.scene import DONE, END, EVENT, ask, code_of, held_stream
from tests.router.live import on_loop, until
from tests.router.process import engine
from tests.router.scripted import answering, chunk, refusing_port, serving
from tests.router.test_discovery import discovering, learning, models
from tests.router.test_reload import File, plain, polls, reload, servers
from tests.router.wire import Client, chat, get


@on_loop
async def test_case_15_a_reload_leaves_one_probe_loop_for_each_server(tmp_path: Path) -> None:
    """A file is read again many times: each server is polled by one loop, one that is gone by none.

    production-stack#680.
    """
    often = "\n[health]\ninterval_s = 0.2\n"
    async with serving(engine(plain)) as going, serving(engine(plain)) as staying:
        file = File(tmp_path, "leaf").write(servers(going, staying), often)
        async with file.runs() as (_, asked):
            for number in range(5):
                file.write(servers(going, staying), often, drain_s=float(number))
                assert (await reload(asked))[0] == 200
            file.write(servers(staying), often)
            assert (await reload(asked))[0] == 200
            gone, before, began_s = polls(going), polls(staying), time.monotonic()
            await until(lambda: polls(staying) == before + 4)
            assert time.monotonic() - began_s > 0.6, "four polls of one loop, not of several"
            assert polls(going) == gone


@on_loop
async def test_case_16_without_a_target_a_router_is_alive_and_not_ready() -> None:
    """No target is routable, or none any more: /readyz fails, /livez does not. ray#46938, traefik#6688."""
    with refusing_port() as port:
        async with discovering([learning("s", port)]) as (live, client):
            await until(lambda: live.tier.targets["s"].down == {f"http://127.0.0.1:{port}"})
            assert [(await client.ask(get(path))).status for path in ("/readyz", "/livez")] == [503, 200]
    async with discovering([learning("s", port)]) as (live, client):
        async with serving(answering(models("m")), port=port):
            await until(live.router.routable)
            assert [(await client.ask(get(path))).status for path in ("/readyz", "/livez")] == [200, 200]
        assert code_of(await ask(live)) == (502, "upstream_unreachable")  # which is how it is noticed at once
        assert [(await client.ask(get(path))).status for path in ("/readyz", "/livez")] == [503, 200]
        assert code_of(await ask(live)) == (503, "no_routable_server")


@on_loop
async def test_case_17_one_dead_target_does_not_spoil_the_list_of_models() -> None:
    """Of two servers one is dead: /v1/models is 200 and lists what the other serves. vllm router#135."""
    with refusing_port() as nobody:
        async with serving(answering(models("m", "n"))) as other:
            targets = [learning("dead", nobody), learning("s", other.port)]
            async with discovering(targets) as (live, client):
                await until(live.router.routable)
                answer = await client.ask(get("/v1/models"))
                assert answer.status == 200
                assert [model["id"] for model in json.loads(answer.body)["data"]] == ["m", "n"]


@on_loop
async def test_case_18_a_reload_that_adds_a_target_cuts_no_stream(tmp_path: Path) -> None:
    """A server that has nothing to do with it is added while a stream runs: the stream goes on. caddy#7222."""
    held = held_stream()
    async with serving(engine(held.script)) as busy, serving(engine(plain)) as unrelated:
        file = File(tmp_path, "leaf").write(servers(busy))
        async with file.runs() as (process, asked):
            client = await Client.connect(process.ports["listening"])
            await client.send(chat())
            await client.reader.readuntil(EVENT)
            file.write(servers(busy), servers(unrelated, models='["n"]'))
            assert (await reload(asked))[0] == 200
            await until(lambda: bool(unrelated.heard))
            held.go.set()
            await client.reader.readuntil(chunk(DONE) + END)
            client.abort()


@on_loop
async def test_case_19_a_file_half_of_which_is_invalid_changes_nothing(tmp_path: Path) -> None:
    """One new server is right, the other is not: the reload is refused whole, the old file serves on. envoy#12592."""
    async with serving(engine(plain)) as old, serving(engine(plain)) as new:
        file = File(tmp_path, "leaf").write(servers(old))
        async with file.runs() as (process, asked):
            file.write(servers(new), servers("http://127.0.0.1:1/with/a/path"))
            status, answer = await reload(asked)
            assert (status, "server[1].url" in answer["error"]) == (422, True)
            assert [row["address"] for row in await asked.get("servers")] == [old.url]
            assert {(await process.ask(chat())).status for _ in range(8)} == {200}
            assert new.heard == []
