"""A configuration file read again by a running process: whole or not at all, and nobody's request is touched."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dlbctl.core.offline import replay
from dlbctl.core.settings import TargetSettings
from dlbctl.router.probe import Prober

from .live import leaf, on_loop, root, server, until
from .process import Running, engine, running
from .scripted import Connection, ScriptedServer, answering, chunk, serving, sized
from .test_admin import Api, api
from .test_lifecycle import EVENT, Streaming, streaming_client
from .wire import Client, chat, get, post


async def plain(connection: Connection) -> None:
    """Answer one request, on a connection that stays."""
    await connection.hear()
    await connection.send(sized(b"{}"))


class File:
    """A configuration that is written anew, and a process that runs on it."""

    def __init__(self, folder: Path, role: str, **section: object) -> None:
        self.role = role
        self.path = folder / f"{role}.toml"
        self.admin = folder / f"{role}.sock"
        self.section = {"listen": "127.0.0.1:0", "admin": f"unix:{self.admin}", "readiness_grace_s": 0.0, **section}
        if role == "leaf":
            self.section |= {"cell": "c1", "peer_listen": "127.0.0.1:0"}

    def write(self, *tables: str, **section: object) -> File:
        lines = [f"{key} = {value!r}" for key, value in (self.section | section).items()]
        self.path.write_text("\n".join([f"[{self.role}]", *lines, *tables]))
        return self

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator[tuple[Running, Api]]:
        async with (
            running(self.role, self.path, 2 if self.role == "leaf" else 1) as made,
            api(self.admin) as asked,
        ):
            await made.ready()
            yield made, asked


def servers(*engines: ScriptedServer | str, table: str = "server", models: str = '["m"]') -> str:
    urls = [one if isinstance(one, str) else one.url for one in engines]
    return "".join(f'\n[[{table}]]\nurl = "{url}"\nendpoints = {models}\n' for url in urls)


def cell(name: str, *engines: ScriptedServer) -> str:
    return f'\n[[cell]]\nname = "{name}"' + servers(*engines, table="cell.server")


async def reload(asked: Api) -> tuple[int, Any]:
    answer = await asked.client.post("/v1/reload")
    return answer.status_code, answer.json()


async def eventually(true: Callable[[], Any]) -> None:
    """Wait until an answer of the process is as it should be; the test's time limit ends a vain wait."""
    while not await true():
        await asyncio.sleep(0.01)


def polls(engine: ScriptedServer) -> int:
    return sum(heard.url == b"/v1/models" for heard in engine.heard)


# -- what is taken over --------------------------------------------------------------------------------------


@on_loop
async def test_a_server_comes_and_a_server_goes_while_a_stream_runs(tmp_path: Path) -> None:
    """Cases 15 and 18: the stream outlives the reload; the loop of what is gone stops, of what stays goes on."""
    streaming = Streaming()
    async with (
        serving(engine(streaming.serve)) as going,
        serving(engine(plain)) as staying,
        serving(engine(plain)) as coming,
    ):
        kept = servers(staying, models='["n"]')
        once = "\n[health]\ninterval_s = 600.0\n"  # a loop that goes on asks no second time in this test
        file = File(tmp_path, "leaf").write(servers(going), kept, once)
        async with file.runs() as (made, asked):
            while not all(row["up"] for row in await asked.get("servers")):
                await asyncio.sleep(0.01)
            assert polls(going) == polls(staying) == 1
            client = await streaming_client(made.ports["listening"])
            file.write(kept, servers(coming), once)
            assert await reload(asked) == (
                200,
                {f"server[{going.url}]": "removed", f"server[{coming.url}]": "added"},
            )
            await until(lambda: polls(coming) == 1)
            assert {row["address"] for row in await asked.get("servers")} == {staying.url, coming.url}
            assert (await made.ask(chat())).status == 200
            assert coming.heard[-1].url == b"/v1/chat/completions"
            streaming.gate.set()
            assert await client.reader.readuntil(b"0\r\n\r\n") == chunk(EVENT) + b"0\r\n\r\n"
            await until(lambda: all(c.reader.at_eof() for c in going.connections), "no idle connection is kept")
            assert (polls(going), polls(staying)) == (1, 1)
            client.abort()


@on_loop
async def test_another_weight_takes_a_server_out_of_service_for_no_moment(tmp_path: Path) -> None:
    async with serving(engine(plain)) as only:
        file = File(tmp_path, "leaf").write(servers(only))
        async with file.runs() as (made, asked):
            for weight in (2.0, 3.0, 0.5):
                file.write(servers(only), f"weight = {weight}")
                status, changed = await reload(asked)
                assert (status, list(changed)) == (200, [f"server[{only.url}].weight"])
                assert (await made.ask(chat())).status == 200
                assert [row["weight"] for row in await asked.get("servers")] == [weight]


@on_loop
async def test_limits_time_limits_and_endpoints_are_those_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    async def silent(connection: Connection) -> None:
        await connection.hear()
        await connection.left()

    async with serving(engine(silent)) as only:
        file = File(tmp_path, "leaf").write(servers(only))
        async with file.runs() as (made, asked):
            client = await Client.connect(made.ports["listening"])  # the new limits hold on its connection as well
            assert (await client.ask(get("/livez"))).status == 200
            file.write(
                servers(only),
                "[http]\nbody_bytes = 100\n[timeouts]\nfirst_byte_s = 0.2",
                '[[endpoint]]\nname = "none"\n',
                drain_s=1.0,
            )
            assert await reload(asked) == (
                200,
                {
                    "endpoint[none]": "added",
                    "http.body_bytes": "67108864 -> 100",
                    "leaf.drain_s": "600.0 -> 1.0",
                    "timeouts.first_byte_s": "600.0 -> 0.2",
                },
            )
            assert (await client.ask(chat())).status == 504
            assert (await client.ask(chat("none"))).status == 503, "configured, and served by nobody"
            assert (await client.ask(post(b" " * 101))).status == 413
            client.abort()


@on_loop
async def test_a_policy_set_live_survives_and_the_file_has_what_it_reverts_to(tmp_path: Path) -> None:
    named = '[[endpoint]]\nname = "m"\npolicy = "{}"\n'
    async with serving(engine(plain)) as only:
        file = File(tmp_path, "leaf").write(servers(only), named.format("discrete/rif"))
        async with file.runs() as (_, asked):
            await asked.switch("m", policy="power-of-d/rif")
            file.write(servers(only), named.format("discrete/work"))
            assert (await reload(asked))[0] == 200
            (row,) = await asked.get("endpoints")
            assert (row["policy"], row["configured_policy"]) == ("power-of-d/rif", "discrete/work")
            await asked.revert("m")
            assert await asked.policies() == {"m": ("discrete/work", False)}


@on_loop
async def test_a_peers_token_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("before")
    file = File(tmp_path, "leaf", peer_token_file=str(token)).write(servers("http://127.0.0.1:1"))
    async with running("leaf", file.path, 2) as made, api(file.admin) as asked:
        for shown, changed in (("before", {}), ("after", {"leaf.peer_token_file": "holds another token"})):
            token.write_text(shown)
            assert await reload(asked) == (200, changed)
            for said, status in ((shown, 200), ("neither", 401)):
                ping = get("/dlb/v1/ping", b"dlb-token: %b\r\n" % said.encode())
                assert (await made.ask(ping, "peers")).status == status


# -- cells of a root -----------------------------------------------------------------------------------------


@on_loop
async def test_cells_of_its_own_process_come_go_and_change_and_the_log_runs_again(tmp_path: Path) -> None:
    log = tmp_path / "events"
    async with serving(engine(plain)) as one, serving(engine(plain)) as two, serving(engine(plain)) as three:
        file = File(tmp_path, "root", event_log=str(log)).write(cell("eu", one), cell("us", two))
        async with file.runs() as (made, asked):

            async def answers_from(*cells: str) -> bool:
                got = [await made.ask(chat()) for _ in range(12)]
                assert {answer.status for answer in got} == {200}
                return {answer.get(b"x-dlb-cell") for answer in got} == {name.encode() for name in cells}

            await eventually(lambda: answers_from("eu", "us"))
            file.write(cell("us", two), cell("ap", three))
            assert (await reload(asked))[1] == {"cell[ap]": "added", "cell[eu]": "removed"}
            await eventually(lambda: answers_from("us", "ap"))
            file.write(cell("us", two, three), cell("eu", one))  # one that grows, one gone and come again
            assert (await reload(asked))[0] == 200
            await eventually(lambda: answers_from("us", "eu"))
            await eventually(lambda: grown(asked))
            made.signal(signal.SIGTERM)
            assert (await made.ended())[0] == 0
    for name in ("events", "events.us", "events.ap", "events.eu", "events.eu.1"):
        comparison = replay((tmp_path / name).read_bytes().splitlines(keepends=True))
        assert comparison.same, (name, comparison.mismatches[0])
    assert b'"SettingsChanged"' in log.read_bytes()


async def grown(asked: Api) -> bool:
    return {row["cell"]: row["k"] for row in await asked.get("cells")} == {"us": 2.0, "eu": 1.0}


@on_loop
async def test_a_cell_that_is_given_leaves_in_place_of_servers_is_asked_at_these(tmp_path: Path) -> None:
    async with serving(engine(plain)) as one, leaf([server("s", one.port)], cell="eu") as eu:
        file = File(tmp_path, "root").write(cell("eu", one))
        async with file.runs() as (made, asked):
            assert [row["leaf"] for row in await asked.get("servers")] == [""]
            url = f"http://127.0.0.1:{eu.peer_port}"
            file.write(f'[[cell]]\nname = "eu"\nleaves = ["{url}"]')
            assert (await reload(asked))[0] == 200
            await made.ready()
            assert (await made.ask(chat())).get(b"x-dlb-server") == b"s"


@on_loop
async def test_subscriptions_and_pings_follow_the_leaves_and_leave_the_others_alone() -> None:
    """Case 15 for a root: one stream and one ping to each leaf there is, none to one that is gone."""
    async with leaf([], cell="eu") as one, leaf([], cell="eu") as two, leaf([], cell="eu") as three:
        first, second, third = (f"http://127.0.0.1:{live.peer_port}" for live in (one, two, three))
        async with root([TargetSettings("eu", (first, second))]) as live:
            prober = Prober(live.router, 10.0)
            task = asyncio.ensure_future(prober.run())
            eu = live.tier.targets["eu"]
            await until(lambda: eu.shut == frozenset())
            kept = set(two.connections)
            live.tier.targets_changed([TargetSettings("eu", (second, third))])
            prober.follow()
            assert eu.up, "one of its leaves has stayed"
            await until(lambda: eu.shut == frozenset())
            await until(lambda: not one.connections, "neither a stream nor a ping is left")
            assert two.connections == kept
            assert len(three.connections) == 2
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# -- what is refused -----------------------------------------------------------------------------------------

REFUSED = [
    ("[[server]]", "server[1].url is missing"),  # half of it valid (case 19)
    ("[[server]]\nurl = 'http://x:1'\nweigth = 2", "unknown key server[1].weigth"),
    ("[http]\nbody_bytes = 0", "http.body_bytes: must be positive"),
    ("[timeouts", "not valid TOML"),
]
FIXED: list[tuple[dict[str, object], str]] = [
    ({"listen": "127.0.0.1:1"}, "leaf.listen"),
    ({"peer_listen": "127.0.0.1:2", "cell": "c2"}, "leaf.cell, leaf.peer_listen"),
    ({"admin": "unix:/elsewhere.sock", "seed": 4, "event_log": "x"}, "leaf.admin, leaf.event_log, leaf.seed"),
    ({"metrics_listen": "127.0.0.1:3"}, "leaf.metrics_listen"),
]


async def refuses(file: File, made: Running, asked: Api, words: str) -> None:
    """A reload is refused in these words and changes nothing."""
    before = await asked.get("servers")
    status, answer = await reload(asked)
    assert status == 422
    assert f"{file.path}: {words}" in answer["error"]
    assert [row["server"] for row in await asked.get("servers")] == [row["server"] for row in before]
    assert (await made.ask(chat())).status == 200


@on_loop
async def test_a_file_that_is_wrong_or_wants_what_cannot_be_changes_nothing_and_says_why(tmp_path: Path) -> None:
    async with serving(engine(plain)) as only, serving(answering(sized(b"{}"))) as other:
        file = File(tmp_path, "leaf").write(servers(only))
        async with file.runs() as (made, asked):
            for tables, words in REFUSED:
                file.write(servers(other), tables)
                await refuses(file, made, asked, words)
            for section, words in FIXED:
                file.write(servers(other), **section)
                await refuses(file, made, asked, f"{words}: cannot change in a running process; nothing was changed")
            file.write("[[endpoint]]\nname = 'm'")
            await refuses(file, made, asked, "server is missing")
            file.path.unlink()
            await refuses(file, made, asked, "cannot be read")
            assert not other.connections
            file.write(servers(only))
            assert await reload(asked) == (200, {}), "nothing of the refused files has stayed"


@on_loop
async def test_sighup_tells_the_log(tmp_path: Path) -> None:
    async with serving(engine(plain)) as only, serving(engine(plain)) as other:
        file = File(tmp_path, "leaf").write(servers(only))
        async with file.runs() as (made, _):
            file.write("nonsense")
            made.signal(signal.SIGHUP)
            await made.says("reload by SIGHUP: refused: ")
            file.write(servers(other))
            made.signal(signal.SIGHUP)
            said = await made.says("reload by SIGHUP: server")
            assert f"server[{only.url}]: removed" in said
            assert f"server[{other.url}]: added" in said
            await eventually(lambda: served_by(made, other))


async def served_by(made: Running, engine: ScriptedServer) -> bool:
    return (await made.ask(chat())).get(b"x-dlb-server") == f"127.0.0.1:{engine.port}".encode()


@pytest.mark.parametrize("role", ["root", "leaf"])
@on_loop
async def test_many_reloads_at_once_end_at_the_last_file(role: str, tmp_path: Path) -> None:
    async with serving(engine(plain)) as only:
        tables = servers(only) if role == "leaf" else cell("eu", only)
        file = File(tmp_path, role).write(tables)
        async with file.runs() as (made, asked):
            pending = []
            for number in range(10):
                file.write(tables, drain_s=float(number))
                pending.append(asyncio.ensure_future(reload(asked)))
                made.signal(signal.SIGHUP)
            assert {status for status, _ in await asyncio.gather(*pending)} == {200}
            assert await reload(asked) == (200, {})
            assert (await made.ask(chat())).status == 200
