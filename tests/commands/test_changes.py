"""`dlbctl reload`, `drain`, `undrain` and `server` as processes: what they change, print and exit with."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from dlbctl.commands.admin_client import connected
from dlbctl.core.snapshot import ServerRow
from tests.acceptance.commands import Ended, dlbctl, running

from .conftest import MODEL, Routers, root_file, started


def run(admin: str, *words: object) -> Ended:
    return dlbctl(*words, environment={"DLBCTL_ADMIN": admin})


class Root:
    """A root of its own, whose file may be changed."""

    def __init__(self, folder: Path, url: str) -> None:
        self.file = folder / "root.toml"
        self.admin = f"unix:{folder}/root.sock"
        self.url = url

    def run(self, *words: object) -> Ended:
        return run(self.admin, *words)

    def append(self, text: str) -> None:
        self.file.write_text(self.file.read_text() + text)

    def servers(self) -> dict[str, str]:
        with connected(self.admin) as (client,):
            return {row.address: row.state for row in client.read("/v1/servers", list[ServerRow])}


@pytest.fixture
def root(engines: list[str], tmp_path: Path) -> Iterator[Root]:
    with running("root", "--config", root_file(tmp_path, "root", engines[:1])) as process:
        yield Root(tmp_path, started(process))


# -- reload --------------------------------------------------------------------------------------------------


def test_a_reload_tells_what_changed(root: Root, engines: list[str]) -> None:
    assert root.run("reload") == (0, f"{root.admin}: reloaded; the file says nothing new\n", "")
    root.append(f'[[cell.server]]\nurl = "{engines[1]}"\n[timeouts]\nidle_s = 7.0\n')
    code, out, err = root.run("reload")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{root.admin}: reloaded",
        f"  cell[eu].server[{engines[1]}]: added",
        "  timeouts.idle_s: 300.0 -> 7.0",
    ]
    assert set(root.servers()) == set(engines)
    root.append("total_s = 9.0\n")
    assert json.loads(root.run("reload", "--json")[1]) == {root.admin: {"timeouts.total_s": "0.0 -> 9.0"}}


def test_a_refused_reload_is_code_3_with_file_and_key(root: Root) -> None:
    before = root.file.read_text()
    for text, words in (
        (before + "[http]\nbody_byte = 5\n", f"{root.file}: unknown key http.body_byte\n  did you mean body_bytes?"),
        (before.replace("127.0.0.1:0", "127.0.0.1:1"), f"{root.file}: root.listen: cannot change in a running process"),
    ):
        root.file.write_text(text)
        code, out, err = root.run("reload")
        assert (code, out) == (3, "")
        assert words in err


def test_a_router_that_is_not_there_is_code_4(tmp_path: Path) -> None:
    for words in (("reload",), ("drain", "eu"), ("undrain", "eu"), ("server", "add", "http://x:1")):
        code, out, err = run(f"unix:{tmp_path}/gone.sock", *words)
        assert (code, out) == (4, "")
        assert "gone.sock does not answer" in err


# -- drain ---------------------------------------------------------------------------------------------------


def test_drain_waits_for_what_is_in_flight(root: Root) -> None:
    long = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell"}],
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
    }
    short = long | {"max_tokens": 1}
    with httpx.stream("POST", f"{root.url}/v1/chat/completions", json=long, trust_env=False) as stream:
        code, out, _ = root.run("drain", "eu")
        assert (code, out) == (0, f"{root.admin}: cell eu is drained, 1 in flight\n")
        code, out = in_background(lambda: root.run("drain", "eu", "--wait")[:2], stream.read)
        assert (code, out) == (0, f"{root.admin}: cell eu is drained, 0 in flight\n")
        assert stream.read().endswith(b"data: [DONE]\n\n"), "it was not cut short"
    assert "drained" in root.run("inspect", "cells")[1]
    assert httpx.post(f"{root.url}/v1/chat/completions", json=short, trust_env=False).status_code == 503
    assert root.run("undrain", "eu") == (0, f"{root.admin}: cell eu is in service, 0 in flight\n", "")
    assert httpx.post(f"{root.url}/v1/chat/completions", json=short, trust_env=False).status_code == 200


def in_background(act: Callable[[], tuple[int, str]], meanwhile: Callable[[], object]) -> tuple[int, str]:
    """What an act in a thread returns, while this one goes on."""
    found: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    meanwhile()
    thread.join()
    return found[0]


def test_what_only_one_of_two_routers_has_is_drained_in_neither(
    routers: Routers, root: Root, engines: list[str]
) -> None:
    code, out, err = run(f"{root.admin},{routers.first}", "drain", engines[1])
    assert (code, out) == (1, "")
    assert f"the router at {root.admin} refuses: there is no '{engines[1]}' here" in err
    code, _, err = run(f"{routers.first},{root.admin}", "drain", engines[1])
    assert code == 1
    assert root.admin in err
    with connected(routers.first) as (client,):
        assert {row.state for row in client.read("/v1/servers", list[ServerRow])} == {"up"}


# -- server --------------------------------------------------------------------------------------------------


def test_a_server_is_added_and_removed_and_shown_as_drift(root: Root, engines: list[str]) -> None:
    more = ("--weight", 2, "--slots", 5, "--endpoint", MODEL, "--endpoint", "another")
    code, out, err = root.run("server", "add", engines[1], "--cell", "eu", *more)
    assert (code, out, err) == (0, f"{root.admin}: {engines[1]}: added\n", "")
    assert root.run("server", "remove", engines[0])[0] == 0
    assert root.servers()[engines[0]] == "removed"
    _, out, _ = root.run("inspect", "servers")
    names = [engine.removeprefix("http://") for engine in engines]
    assert f"{names[0]}: removed live; `dlbctl server add` undoes it" in out
    assert f"{names[1]}: added live; a restart forgets it" in out
    line = next(line for line in out.splitlines() if line.startswith(names[1]))
    assert line.split()[4:6] == ["5", "2"]
    assert f"another, {MODEL}" in line or f"{MODEL}, another" in line

    code, out, err = root.run("server", "add", engines[1])
    assert (code, out) == (1, "")
    assert f"there is a server {names[1]} at {engines[1]} already" in err
    rows = json.loads(root.run("server", "remove", names[1], "--json")[1])[root.admin]
    assert [row["address"] for row in rows] == [engines[0]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--weight", "nan"), "server.weight: must be positive"),
        (("--weight", "inf"), "server.weight: must be positive"),
        (("--slots", "-1"), "server.slots: cannot be negative"),
        (("--endpoint", ""), "server.endpoints[0]: '' is no name"),
    ],
)
def test_a_server_that_cannot_be_is_told_before_any_router_is_asked(words: tuple[str, ...], told: str) -> None:
    code, out, err = run("unix:/nowhere", "server", "add", "http://127.0.0.1:1", *words)
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"dlbctl: error: {told}"
