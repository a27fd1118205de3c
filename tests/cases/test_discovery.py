"""Cases 15 to 19: what is known of the targets changes, and what is served meanwhile does not suffer."""

from __future__ import annotations

import json

from tests.cases.scene import ask, code_of
from tests.router.live import on_loop, until
from tests.router.scripted import answering, refusing_port, serving
from tests.router.test_discovery import discovering, learning, models
from tests.router.wire import get


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
        async with serving(answering(models("m", "n"))) as engine:
            servers = [learning("dead", nobody), learning("s", engine.port)]
            async with discovering(servers) as (live, client):
                await until(live.router.routable)
                answer = await client.ask(get("/v1/models"))
                assert answer.status == 200
                assert [model["id"] for model in json.loads(answer.body)["data"]] == ["m", "n"]
