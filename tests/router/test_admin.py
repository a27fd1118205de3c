"""The admin API over running routers: what it shows, what may be changed, whose socket it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from dlbctl.core.events import AdminState
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
from dlbctl.router.admin import Admin, AdminProtocol
from dlbctl.router.control import Control
from dlbctl.router.lifecycle import bind, hosted

from .live import Live, client_of, leaf, on_loop, root, server, until
from .process import Running, engine, launch, leaf_file, running
from .scripted import Held, answering, refusing_port, serving, sized
from .test_peers import probing
from .wire import Client, chat, post

NAME = "org/модель [v1]?#%"
TOKEN = b"kept-secret-between-peers"
ROOT_ENDPOINTS = [EndpointSettings("m"), EndpointSettings(NAME, policy="discrete/rif")]


class Api:
    """An admin listener, asked as the command line asks."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, what: str) -> Any:
        answer = await self.client.get(f"/v1/{what}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def put(self, endpoint: str, content: bytes) -> tuple[int, Any]:
        answer = await self.client.put(f"/v1/policy/{quote(endpoint, safe='')}", content=content)
        return answer.status_code, answer.json()

    async def switch(self, endpoint: str, **words: str) -> tuple[int, Any]:
        return await self.put(endpoint, json.dumps(words).encode())

    async def revert(self, endpoint: str) -> tuple[int, Any]:
        answer = await self.client.delete(f"/v1/policy/{quote(endpoint, safe='')}")
        return answer.status_code, answer.json()

    async def policies(self) -> dict[str, tuple[str, bool]]:
        return {row["endpoint"]: (row["policy"], row["overridden"]) for row in await self.get("endpoints")}

    async def shares(self, endpoint: str) -> dict[str, float]:
        shares: dict[str, float] = next(
            row["shares"] for row in await self.get("endpoints") if row["endpoint"] == endpoint
        )
        return shares


async def nothing_to_read() -> dict[str, str]:
    return {}


@contextlib.asynccontextmanager
async def admin_of(live: Live) -> AsyncIterator[Api]:
    """The admin listener of a router, hosted as in a process."""
    sock = bind("admin", "127.0.0.1:0")
    port = sock.getsockname()[1]
    control = Control(live.router, lambda: live.served, nothing_to_read)
    listener = hosted(Admin(live.router, control).app(), protocol=AdminProtocol)
    serving = asyncio.ensure_future(listener.serve(sockets=[sock]))
    await until(lambda: listener.started)
    try:
        async with api(base_url=f"http://127.0.0.1:{port}") as asked:
            yield asked
    finally:
        listener.stop()
        await serving


@contextlib.asynccontextmanager
async def api(path: Path | None = None, base_url: str = "http://router") -> AsyncIterator[Api]:
    transport = httpx.AsyncHTTPTransport(uds=str(path)) if path else None
    async with httpx.AsyncClient(transport=transport, base_url=base_url, trust_env=False) as client:
        yield Api(client)


def local_cell(name: str, port: int) -> TierSettings:
    return TierSettings("leaf", name, (server(f"{name}-0", port, "m", NAME),), seed=1)


class Remote(NamedTuple):
    """A leaf process."""

    leaf: Running
    url: str


@contextlib.asynccontextmanager
async def remote_leaf(folder: Path, engine_url: str, token: bytes = b"") -> AsyncIterator[Remote]:
    """A leaf process in front of one server, ready, with or without a token of its peers."""
    section: dict[str, object] = {"cell": "eu", "readiness_grace_s": 0.0}
    if token:
        (folder / "token").write_bytes(token + b"\n")
        section["peer_token_file"] = str(folder / "token")
    async with running("leaf", leaf_file(folder, engine_url, **section), 2) as made:
        await made.ready()
        yield Remote(made, f"http://127.0.0.1:{made.ports['peers']}")


# -- what it shows -----------------------------------------------------------------------------------------


@on_loop
async def test_a_root_in_one_process_shows_its_cells_servers_and_samples() -> None:
    async with (
        serving(answering(sized(b"{}"))) as behind,
        root([], local=[local_cell("eu", behind.port)], endpoints=ROOT_ENDPOINTS) as live,
        admin_of(live) as asked,
    ):
        client = await live.client()
        assert (await client.ask(chat())).status == 200
        client.abort()
        cells = {row["endpoint"]: row for row in await asked.get("cells")}
        assert set(cells) == {"m", NAME}
        assert (cells["m"]["cell"], cells["m"]["k"], cells["m"]["share"]) == ("eu", 1.0, 1.0)
        (shown,) = await asked.get("servers")
        assert (shown["server"], shown["cell"], shown["leaf"], shown["up"]) == ("eu-0", "eu", "", True)
        curves = {row["endpoint"]: row for row in await asked.get("curves")}
        assert [b["n_eff"] for b in curves["m"]["bins"]] == [pytest.approx(1.0, abs=0.1)]
        assert curves[NAME]["bins"] == []
        assert curves[NAME]["why"] == "no request has ended yet"


@on_loop
async def test_a_leaf_shows_its_servers_and_curves_and_no_cells() -> None:
    async with leaf([server("s", 1)]) as live, admin_of(live) as asked:
        info = await asked.get("info")
        assert (info["role"], info["cell"], info["ready"], info["in_flight"]) == ("leaf", "c1", True, 0)
        assert await asked.get("cells") == []
        assert [row["server"] for row in await asked.get("servers")] == ["s"]
        assert [(row["cell"], row["endpoint"]) for row in await asked.get("curves")] == [("c1", "m")]


@pytest.mark.parametrize("token", [b"", TOKEN])
@on_loop
async def test_a_remote_leaf_brings_servers_and_samples_and_a_dead_one_takes_nothing_away(
    token: bytes, tmp_path: Path
) -> None:
    with refusing_port() as dead:
        async with serving(engine(answering(sized(b"{}")))) as behind, remote_leaf(tmp_path, behind.url, token) as eu:
            gone = f"http://127.0.0.1:{dead}"
            cells = [TargetSettings("eu", (gone, eu.url)), TargetSettings("us", (gone,))]
            async with probing(cells, token=token) as live, admin_of(live) as asked:
                await until(live.router.routable)
                client = await Client.connect(eu.leaf.ports["listening"])
                for _ in range(3):
                    assert (await client.ask(chat())).status == 200
                client.abort()
                dead_eu, dead_us, shown = sorted(await asked.get("servers"), key=lambda row: (row["up"], row["cell"]))
                assert (shown["cell"], shown["leaf"], shown["up"], shown["why"]) == ("eu", eu.url, True, "")
                for row, name in ((dead_eu, "eu"), (dead_us, "us")):
                    assert (row["cell"], row["leaf"], row["server"]) == (name, gone, "")
                    assert row["why"] == "does not answer"
                (curve,) = await asked.get("curves")
                assert (curve["cell"], curve["endpoint"], curve["curve"]) == ("eu", "m", None)
                assert sum(b["n_eff"] for b in curve["bins"]) == pytest.approx(3.0, abs=0.1)
                assert "samples" in curve["why"] or "request" in curve["why"]
                shown_cells = await asked.get("cells")
                assert {row["cell"]: row["up"] for row in shown_cells} == {"eu": True, "us": False}
                assert {row["why"] for row in shown_cells} == {f"leaf {gone} does not answer"}


@on_loop
async def test_a_leaf_that_does_not_know_this_root_shows_it_nothing(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as behind, remote_leaf(tmp_path, behind.url, TOKEN) as eu:
        refused = "refuses this root: its peer token is another one"
        for token, shown in ((TOKEN, ""), (b"another", refused), (b"", refused)):
            cells = [TargetSettings("eu", (eu.url,))]
            async with root(cells, token=token, endpoints=ROOT_ENDPOINTS) as live, admin_of(live) as asked:
                (row,) = await asked.get("servers")
                assert (row["cell"], row["leaf"]) == ("eu", eu.url)
                assert (bool(row["server"]), row["why"]) == (not shown, shown)


@on_loop
async def test_a_peer_that_answers_nonsense_hides_nobody() -> None:
    async with (
        serving(answering(sized(b'{"servers":[{}],"curves":1}'))) as broken,
        serving(answering(sized(b"{}"))) as behind,
        root(
            [TargetSettings("odd", (broken.url,))],
            local=[local_cell("eu", behind.port)],
            endpoints=ROOT_ENDPOINTS,
        ) as live,
        admin_of(live) as asked,
    ):
        rows = await asked.get("servers")
        assert [(row["cell"], row["why"]) for row in rows] == [("eu", ""), ("odd", "answers what cannot be read")]


@on_loop
async def test_no_answer_holds_a_secret() -> None:
    """Case 46: neither the peers' token nor what clients send to prove themselves."""
    async with (
        serving(answering(sized(b"{}"))) as behind,
        root([], local=[local_cell("eu", behind.port)], endpoints=ROOT_ENDPOINTS, token=TOKEN) as live,
        admin_of(live) as asked,
    ):
        client = await live.client()
        said = b"authorization: Bearer sk-client\r\ncookie: id=sk-client\r\nx-api-key: sk-client\r\n"
        assert (await client.ask(post(b'{"model":"m","user":"sk-client"}', extra=said))).status == 200
        client.abort()
        answers = [
            await asked.client.get(f"/v1/{what}") for what in ("info", "cells", "endpoints", "servers", "curves")
        ]
        answers += [await asked.client.put("/v1/policy/m", content=b'{"cost":"nope"}'), await asked.client.get("/nope")]
        for answer in answers:
            assert TOKEN.decode() not in answer.text + str(answer.headers)
            assert "sk-client" not in answer.text + str(answer.headers)


@on_loop
async def test_a_page_in_a_browser_changes_nothing() -> None:
    """It may send such a request without asking first: its body is text, as far as the browser knows."""
    headers = {"origin": "http://elsewhere.example", "content-type": "text/plain"}
    body = b'{"server":{"url":"http://6.6.6.6:1"}}'
    async with leaf([server("s", 1)]) as live, admin_of(live) as asked:
        answer = await asked.client.post("/v1/servers", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (403, {"error": "pages in a browser have no access"})
        assert [row["server"] for row in await asked.get("servers")] == ["s"]
        assert (await asked.client.post("/v1/servers", content=body)).status_code == 200


@on_loop
async def test_what_is_not_there_is_an_error_in_json() -> None:
    async with leaf([server("s", 1)]) as live, admin_of(live) as asked:
        for method, path, status in (("GET", "/", 404), ("GET", "/v1/policy/m", 405), ("POST", "/v1/cells", 405)):
            answer = await asked.client.request(method, path)
            assert (answer.status_code, list(answer.json())) == (status, ["error"])


# -- what may be changed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m", NAME])
@on_loop
async def test_a_policy_is_switched_whole_or_by_halves_and_reverted(name: str) -> None:
    cell = local_cell("eu", 1)
    async with root([], local=[cell], endpoints=ROOT_ENDPOINTS) as live, admin_of(live) as asked:
        configured = await asked.policies()
        for words, policy in (
            ({"policy": "power-of-d/rif"}, "power-of-d/rif"),
            ({"mechanism": "discrete"}, "discrete/rif"),
            ({"cost": "latency"}, "discrete/latency"),
            ({"mechanism": "power-of-d", "cost": "gradient"}, "power-of-d/gradient"),
            ({"mechanism": "weighted-random"}, "weighted-random"),
            ({"mechanism": "flow", "cost": "rif"}, "flow/rif"),
            ({"policy": "weighted-random"}, "weighted-random"),
        ):
            status, rows = await asked.switch(name, **words)
            assert status == 200
            assert {row["endpoint"]: row["policy"] for row in rows}[name] == policy
            assert await asked.policies() == {**configured, name: (policy, True)}
        status, _ = await asked.revert(name)
        assert (status, await asked.policies()) == (200, configured)
        for policy in ("power-of-d/rif", ""):
            assert (await asked.switch(name, policy=policy))[0] == 200
        assert await asked.policies() == configured
        assert (await asked.revert(name))[0] == 200, "twice is no error"


@on_loop
async def test_a_live_switch_to_flow_moves_the_shares_away_from_the_fuller_cell() -> None:
    held = Held(b"", sized(b"{}"))
    async with (
        serving(held.script) as slow,
        serving(answering(sized(b"{}"))) as quick,
        root([], local=[local_cell("slow", slow.port), local_cell("quick", quick.port)]) as live,
        admin_of(live) as asked,
        client_of(live) as client,
        client_of(live) as patient,
    ):
        keeping_time = asyncio.ensure_future(live.router.keep_time())
        live.tier.admin_set(0.0, "quick", "", AdminState.DRAIN)
        stuck = asyncio.ensure_future(patient.ask(chat()))
        await until(lambda: bool(slow.heard))
        live.tier.admin_set(0.0, "quick", "", AdminState.READY)
        await asked.switch("m", policy="flow/rif")
        while (shares := await asked.shares("m")) != {"slow": 0.0, "quick": 1.0}:
            assert sum(shares.values()) == pytest.approx(1.0)
        for _ in range(20):
            assert (await client.ask(chat())).status == 200
        assert (len(slow.heard), len(quick.heard)) == (1, 20)
        held.go.set()
        assert (await stuck).status == 200
        keeping_time.cancel()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b"\xff", "malformed"),
        (b"[]", "array"),
        (b"{}", "give either"),
        (b'{"cost":""}', "length"),
        (b'{"policy":null,"cost":null}', "give either"),
        (b'{"policy":5}', "int"),
        (b'{"polcy":"discrete/rif"}', "unknown field `polcy`"),
        (b'{"policy":"discrete/rif","cost":"latency"}', "give either"),
        (b'{"policy":"discrete"}', "mechanism/cost"),
        (b'{"policy":"discrete/nope"}', "no cost 'nope'"),
        (b'{"mechanism":"nope"}', "no mechanism 'nope'"),
        (b'{"mechanism":"weighted-random","cost":"rif"}', "takes no cost"),
        (b'{"cost":"rif/rif"}', "no cost 'rif/rif'"),
        (b"[" * 100_000, ""),
    ],
)
@on_loop
async def test_a_change_that_is_not_understood_changes_nothing(body: bytes, said: str) -> None:
    async with root([], local=[local_cell("eu", 1)], endpoints=ROOT_ENDPOINTS) as live, admin_of(live) as asked:
        before = await asked.policies()
        status, answer = await asked.put("m", body)
        assert status == 400
        assert said in answer["error"]
        assert await asked.policies() == before


@pytest.mark.parametrize("name", ["other", "m/", "/m", "M", ""])
@on_loop
async def test_an_endpoint_that_is_not_there_is_404_and_the_known_are_named(name: str) -> None:
    async with leaf([server("s", 1)]) as live, admin_of(live) as asked:
        for status, answer in (await asked.switch(name, cost="rif"), await asked.revert(name)):
            assert status == 404
            assert answer["error"] == f"there is no endpoint {name!r}; known: m"
        assert set(await asked.policies()) == {"m"}


# -- the socket --------------------------------------------------------------------------------------------


@on_loop
async def test_the_socket_is_its_users_alone_and_gone_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "leaf.sock"
    async with running("leaf", leaf_file(tmp_path, "http://127.0.0.1:1", readiness_grace_s=0.0), 2) as made:
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        async with api(path) as asked:
            assert (await asked.get("info"))["role"] == "leaf"
        made.signal(signal.SIGTERM)
        assert (await made.ended())[0] == 0
    assert not path.exists()


@on_loop
async def test_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "leaf.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    async with running("leaf", leaf_file(tmp_path, "http://127.0.0.1:1"), 2), api(path) as asked:
        assert (await asked.get("info"))["role"] == "leaf"


@on_loop
async def test_a_living_one_is_left_to_its_owner(tmp_path: Path) -> None:
    path, config = tmp_path / "leaf.sock", leaf_file(tmp_path, "http://127.0.0.1:1")
    async with running("leaf", config, 2), api(path) as asked:
        second = await launch("leaf", config)
        out, errors = await second.communicate()
        assert (second.returncode, out) == (1, b"")
        first, hint = errors.decode().splitlines()
        assert first == f"dlbctl: error: {config}: leaf.admin: {path} belongs to a running process"
        assert "another admin socket" in hint
        assert (await asked.get("info"))["role"] == "leaf"
