"""What an operator changes in a running router: drains, servers added and removed, and the log that tells of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dlbctl.core.settings import TargetSettings
from dlbctl.router.admin import Admin, AdminProtocol
from dlbctl.router.control import Control
from dlbctl.router.lifecycle import bind, hosted

from .live import Live, client_of, leaf, on_loop, root, server, until
from .process import engine, running
from .scripted import serving
from .test_admin import Api, admin_of, api, local_cell, nothing_to_read
from .test_lifecycle import EVENT, Streaming, streaming_client
from .test_peers import cell, probing
from .test_reload import File, plain, polls, reload, servers
from .wire import chat


async def drain(asked: Api, name: str, method: str = "PUT") -> tuple[int, Any]:
    answer = await asked.client.request(method, f"/v1/drain/{quote(name, safe='')}")
    return answer.status_code, answer.json()


async def add(asked: Api, url: str, cell: str = "", **keys: Any) -> tuple[int, Any]:
    answer = await asked.client.post("/v1/servers", json={"server": {"url": url, **keys}, "cell": cell})
    return answer.status_code, answer.json()


async def remove(asked: Api, name: str) -> tuple[int, Any]:
    answer = await asked.client.delete(f"/v1/servers/{quote(name, safe='')}")
    return answer.status_code, answer.json()


async def answered_by(live: Live, count: int = 12) -> set[bytes | None]:
    """The servers that requests go to now."""
    async with client_of(live) as client:
        answers = [await client.ask(chat()) for _ in range(count)]
    assert {answer.status for answer in answers} == {200}
    return {answer.get(b"x-dlb-server") for answer in answers}


# -- drain ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["name", "address", "address/"])
@on_loop
async def test_a_drained_server_ends_what_it_has_and_gets_nothing_new(by: str) -> None:
    streaming = Streaming()
    async with (
        serving(engine(streaming.serve)) as one,
        serving(engine(plain)) as two,
        leaf([server("one", one.port)]) as live,
        admin_of(live) as asked,
    ):
        stream = await streaming_client(live.port)
        live.tier.targets_changed([server("one", one.port), server("two", two.port)])
        live.tier.address_changed(0.0, "two", two.url, True)
        name = {"name": "one", "address": one.url, "address/": f"{one.url}/"}[by]
        assert await drain(asked, name) == (200, {"place": "server one of cell c1", "drained": True, "in_flight": 1})
        assert await answered_by(live) == {b"two"}
        assert {row["server"]: row["state"] for row in await asked.get("servers")} == {"one": "drained", "two": "up"}
        streaming.gate.set()
        await stream.reader.readuntil(b"0\r\n\r\n")
        assert (await drain(asked, name, "GET"))[1]["in_flight"] == 0
        assert (await drain(asked, name, "DELETE"))[1]["drained"] is False
        assert await answered_by(live, 40) == {b"one", b"two"}
        stream.abort()


@on_loop
async def test_a_cell_and_each_of_its_leaves_can_be_drained_at_a_root() -> None:
    async with (
        serving(engine(plain)) as behind,
        leaf([server("s1", behind.port)], cell="eu") as one,
        leaf([server("s2", behind.port)], cell="eu") as two,
        probing([cell("eu", one.peer_port, two.peer_port), cell("us")]) as live,
        admin_of(live) as asked,
    ):
        first, second = (f"http://127.0.0.1:{made.peer_port}" for made in (one, two))
        await until(lambda: not live.tier.targets["eu"].shut)
        assert (await drain(asked, first))[1] == {"place": f"leaf {first}", "drained": True, "in_flight": 0}
        assert await answered_by(live) == {b"s2"}
        (row,) = [row for row in await asked.get("cells") if row["cell"] == "eu"]
        assert (row["up"], row["drained"]) == (True, [first])

        assert (await drain(asked, "eu"))[1]["drained"] is True
        async with client_of(live) as client:
            assert (await client.ask(chat())).status == 503
        status, said = await drain(asked, second, "DELETE")
        assert (status, said["error"]) == (400, "the whole cell eu is drained\n  undrain eu")
        await drain(asked, "eu", "DELETE")
        assert await answered_by(live) == {b"s1", b"s2"}


@on_loop
async def test_a_name_that_is_none_or_several_things_is_refused_with_what_there_is() -> None:
    cells = [local_cell("eu", 1), local_cell("us", 2)]
    async with root([], local=cells) as live, admin_of(live) as asked:
        for tier in live.router.local.values():
            tier.targets_changed([TargetSettings("twin", tier.settings.targets[0].addresses, ("m",))])
        for method in ("PUT", "DELETE", "GET"):
            status, said = await drain(asked, "nowhere", method)
            assert status == 400
            assert said["error"].startswith("there is no 'nowhere' here\n  there is: cell eu, cell us, server twin of")
            status, said = await drain(asked, "twin", method)
            assert said["error"].startswith("'twin' may be server twin of cell eu or server twin of cell us\n")
        assert (await drain(asked, "http://127.0.0.1:2"))[1]["place"] == "server twin of cell us"
        assert (await drain(asked, "eu"))[1]["place"] == "cell eu"


# -- servers -------------------------------------------------------------------------------------------------


@on_loop
async def test_servers_come_and_go_live_and_a_reload_keeps_them(tmp_path: Path) -> None:
    async with (
        serving(engine(plain)) as one,
        serving(engine(plain)) as two,
        serving(engine(plain)) as three,
    ):
        file = File(tmp_path, "leaf").write(servers(one, two))
        async with file.runs() as (_, asked):

            async def states() -> dict[str, tuple[str, str]]:
                return {row["address"]: (row["state"], row["live"]) for row in await asked.get("servers")}

            async def are(**wanted: tuple[str, str]) -> bool:
                made = {"one": one.url, "two": two.url, "three": three.url}
                return await states() == {made[name]: state for name, state in wanted.items()}

            assert (await add(asked, three.url, weight=2.0, slots=3))[0] == 200
            await until(lambda: polls(three) > 0)  # its models were not given
            assert (await remove(asked, one.url))[0] == 200
            drifted = {"one": ("removed", "removed"), "two": ("up", ""), "three": ("up", "added")}
            while not await are(**drifted):
                await asyncio.sleep(0.01)
            (row,) = [row for row in await asked.get("servers") if row["live"] == "added"]
            assert (row["weight"], row["slots"], row["models"]) == (2.0, 3, ["m"])

            file.write(servers(one, two), drain_s=1.0)
            assert (await reload(asked))[0] == 200
            assert await are(**drifted), "what the file says otherwise does not undo it"
            polled = polls(one)

            file.write(servers(two, three))  # now the file says the same
            assert (await reload(asked))[0] == 200
            assert await are(two=("up", ""), three=("up", ""))
            file.write(servers(one, two))
            assert (await reload(asked))[0] == 200
            while not await are(one=("up", ""), two=("up", "")):
                await asyncio.sleep(0.01)
            assert polls(one) == polled + 1


@on_loop
async def test_what_was_removed_comes_back_as_the_file_has_it(tmp_path: Path) -> None:
    async with serving(engine(plain)) as one, serving(engine(plain)) as two:
        file = File(tmp_path, "leaf").write(servers(one), "weight = 3.0", servers(two))
        async with file.runs() as (_, asked):
            await remove(asked, one.url)
            await add(asked, one.url)
            assert {row["address"]: (row["weight"], row["live"]) for row in await asked.get("servers")} == {
                one.url: (3.0, ""),
                two.url: (1.0, ""),
            }
            await remove(asked, two.url)
            await remove(asked, one.url)
            assert {row["state"] for row in await asked.get("servers")} == {"removed"}, "even the last one"


@on_loop
async def test_a_name_that_went_to_another_server_is_not_had_twice(tmp_path: Path) -> None:
    """Of two servers of one name a tier would know only one."""
    first, second = "http://127.0.0.1:1", "http://127.0.0.1:2"
    file = File(tmp_path, "leaf").write(servers(first), 'name = "b"')
    async with running("leaf", file.path, 2), api(file.admin) as asked:

        async def states() -> set[tuple[str, str]]:
            return {(row["address"], row["live"]) for row in await asked.get("servers")}

        await remove(asked, "b")
        assert (await add(asked, second, name="b"))[0] == 200
        status, said = await add(asked, first)
        assert (status, said["error"]) == (400, f"there is a server b at {second} already")
        assert (await reload(asked))[0] == 200
        assert await states() == {(first, "removed"), (second, "added")}
        await remove(asked, "b")
        assert (await add(asked, first))[0] == 200
        assert await states() == {(first, "")}


@on_loop
async def test_a_stream_ends_in_its_own_time_on_a_server_that_was_removed() -> None:
    streaming = Streaming()
    async with (
        serving(engine(streaming.serve)) as one,
        leaf([server("one", one.port)]) as live,
        admin_of(live) as asked,
    ):
        stream = await streaming_client(live.port)
        status, rows = await remove(asked, "one")
        assert (status, [(row["live"], row["in_flight"]) for row in rows]) == (200, [("removed", 1)])
        streaming.gate.set()
        assert (await stream.reader.readuntil(b"0\r\n\r\n")).endswith(EVENT + b"\r\n0\r\n\r\n")
        await live.settled()
        await until(lambda: not live.router.pool(one.url).open, "its connection is not kept")
        stream.abort()


@on_loop
async def test_a_server_that_cannot_be_added_or_removed_says_why() -> None:
    async with (
        leaf([server("one", 1)]) as one,
        root([], local=[local_cell("eu", 1), local_cell("us", 2)]) as two,
        root([TargetSettings("eu", ("http://127.0.0.1:9",))]) as remote,
        admin_of(one) as of_leaf,
        admin_of(two) as of_root,
        admin_of(remote) as of_remote,
    ):
        for asked, change, words in (
            (of_leaf, add(of_leaf, "http://127.0.0.1:1"), "there is a server one at http://127.0.0.1:1 already"),
            (of_leaf, add(of_leaf, "http://x:1", name="one"), "there is a server one at http://127.0.0.1:1 already"),
            (of_leaf, add(of_leaf, "x:1"), "server.url: 'x:1' is not an address of a server"),
            (of_leaf, add(of_leaf, "http://x:1", weight=0.0), "server.weight: must be positive"),
            (of_leaf, add(of_leaf, "http://x:1", endpoints=["m", ""]), "server.endpoints[1]: '' is no name"),
            (of_leaf, add(of_leaf, "http://x:1", wieght=1.0), "the body of a new server: Object contains unknown"),
            (of_leaf, add(of_leaf, "http://x:1", "eu"), "no cell 'eu' is served from this process\n  name one of: c1"),
            (of_leaf, remove(of_leaf, "two"), "there is no 'two' here\n  there is: server one of cell c1"),
            (of_root, add(of_root, "http://x:1"), "several cells are served here\n  name one of: eu, us"),
            (of_root, add(of_root, "http://127.0.0.1:1", "us"), "http://127.0.0.1:1 is a server of cell eu already"),
            (of_root, remove(of_root, "eu"), "there is no 'eu' here\n  there is: server eu-0 of cell eu, server"),
            (of_remote, add(of_remote, "http://x:1", "eu"), "this root serves no cell from its own process\n"),
        ):
            before = await asked.get("servers")
            status, said = await change
            assert (status, said["error"][: len(words)]) == (400, words)
            assert await asked.get("servers") == before
        assert (await add(of_root, "http://x:1", "us"))[0] == 200
        assert [row["cell"] for row in await of_root.get("servers")] == ["eu", "us", "us"]


# -- the log -------------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of changes, without the port of who made them."""
    lines = [record.getMessage() for record in caplog.records if record.name == "dlbctl.router.control"]
    caplog.clear()
    return lines


@on_loop
async def test_each_change_is_one_line_of_what_by_whom_old_and_new(caplog: pytest.LogCaptureFixture) -> None:
    async with leaf([server("one", 1)]) as live, admin_of(live) as asked:
        caplog.set_level(logging.INFO)
        for change, words in (
            (drain(asked, "one"), ("server one of cell c1 by 127.0.0.1:", ": ready -> drained")),
            (drain(asked, "one", "DELETE"), ("server one of cell c1 by 127.0.0.1:", ": drained -> ready")),
            (add(asked, "http://x:1"), ("server x:1 (http://x:1) of cell c1 by 127.0.0.1:", ": none -> added")),
            (remove(asked, "x:1"), ("server x:1 (http://x:1) of cell c1 by 127.0.0.1:", ": there -> removed")),
            (
                asked.switch("m", policy="discrete/rif"),
                ("policy of m by 127.0.0.1:", ": power-of-d/work -> discrete/rif"),
            ),
            (asked.revert("m"), ("policy of m by 127.0.0.1:", ": discrete/rif -> power-of-d/work")),
            (reload(asked), ("reload by 127.0.0.1:", ": the file says nothing new")),
        ):
            await change
            (line,) = told(caplog)
            assert line.startswith(words[0])
            assert line.endswith(words[1])
        for change in (drain(asked, "two"), remove(asked, "two"), asked.switch("m", policy="none/none")):
            assert (await change)[0] == 400
        for look in ("info", "servers", "endpoints"):
            await asked.get(look)
        assert told(caplog) == [], "neither a refused change nor a look"


@contextlib.asynccontextmanager
async def on_unix(live: Live, path: Path) -> AsyncIterator[Api]:
    """The admin listener of a router on its unix socket."""
    control = Control(live.router, lambda: live.served, nothing_to_read)
    listener = hosted(Admin(live.router, control).app(), protocol=AdminProtocol)
    serving_ = asyncio.ensure_future(listener.serve(sockets=[bind("admin", f"unix:{path}")]))
    await until(lambda: listener.started)
    try:
        async with api(path) as asked:
            yield asked
    finally:
        listener.stop()
        await serving_


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only Linux tells who is at the other end")
@on_loop
async def test_on_a_unix_socket_the_log_names_the_user_and_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with leaf([server("one", 1)]) as live, on_unix(live, tmp_path / "admin.sock") as asked:
        caplog.set_level(logging.INFO)
        await drain(asked, "one")
        assert told(caplog) == [f"server one of cell c1 by uid {os.getuid()} (pid {os.getpid()}): ready -> drained"]
