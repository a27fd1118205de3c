"""`dlbctl inspect requests` and `dlbctl kill` as processes, over requests that are really open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from rich.console import Console

from dlbctl.commands.tables import requests_table
from dlbctl.router.open_requests import RequestRow

from .conftest import MODEL, Routers
from .test_inspect import read_json


@contextmanager
def streaming(routers: Routers, identity: str) -> Iterator[Iterator[bytes]]:
    """A request whose answer has begun and goes on for minutes."""
    body = {"model": MODEL, "prompt": "Tell", "max_tokens": 15_000, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=routers.url, timeout=30.0, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body, headers={"x-request-id": identity}) as answer,
    ):
        assert answer.status_code == 200
        pieces = answer.iter_raw()
        assert next(pieces)
        yield pieces


def is_cut(pieces: Iterator[bytes]) -> bool:
    """Whether an answer breaks off, short of its end."""
    try:
        for _ in pieces:
            pass
    except httpx.RemoteProtocolError:
        return True
    return False


def test_an_open_request_is_listed_and_killed(routers: Routers) -> None:
    with streaming(routers, "a long/one") as pieces:
        code, out, err = routers.run("inspect", "requests", "--json")
        assert (code, err) == (0, "")
        (row,) = read_json(out)
        assert tuple(row) == RequestRow.__struct_fields__
        assert (row["id"], row["endpoint"], row["phase"], row["cell"]) == ("a long/one", MODEL, "streaming", "eu")
        assert row["bytes_out"] > 0
        assert "streaming" in routers.run("inspect", "requests").out
        code, out, err = routers.run("kill", "a long/one", admin=routers.both)
        assert (code, err) == (0, "")
        assert out == f"{routers.first}: killed a long/one, streaming for {MODEL}\n"
        assert is_cut(pieces)
    assert routers.run("inspect", "requests").out == "no request is open\n"


def test_of_requests_with_one_id_the_one_that_is_meant_is_killed(routers: Routers) -> None:
    with streaming(routers, "same") as first, streaming(routers, "same") as second:
        numbers = [row["number"] for row in read_json(routers.run("inspect", "requests", "--json").out)]
        code, out, err = routers.run("kill", "same")
        assert (code, out) == (1, "")
        told, _, *choices = err.splitlines()
        assert told == "dlbctl: error: 2 open requests have the id same"
        assert [choice.split("  (")[0].strip() for choice in choices] == [
            f"--number {number} --admin {routers.first}" for number in numbers
        ]
        code, out, err = routers.run("kill", "same", "--number", numbers[1], "--json")
        assert (code, json.loads(out)["number"], err) == (0, numbers[1], "")
        assert is_cut(second)
        assert routers.run("kill", "same").code == 0
        assert is_cut(first)


@pytest.mark.parametrize("identity", ["..", "a/../b?c#d", "%2E%2e"])
def test_no_id_that_a_client_chooses_keeps_a_request_from_being_killed(identity: str, routers: Routers) -> None:
    with streaming(routers, identity) as client:
        assert routers.run("kill", identity)[::2] == (0, "")
        assert is_cut(client)


@pytest.mark.parametrize("words", [("none",), ("none", "--number", "1"), ("none", "--json")])
def test_a_request_that_is_not_open_is_an_error_that_says_where_to_look(
    words: tuple[str, ...], routers: Routers
) -> None:
    code, out, err = routers.run("kill", *words)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "dlbctl: error: no open request has the id none",
        "  `dlbctl inspect requests` lists those that are open",
    ]


def test_an_id_that_would_move_the_cursor_is_drawn_without_that() -> None:
    row = RequestRow(
        id="a\x9b2Jb",
        number=1,
        endpoint=MODEL,
        age_s=1.0,
        phase="connecting",
        cell="",
        server="",
        attempts=1,
        priority=0,
        client="10.0.0.9",
        bytes_out=0,
    )
    console = Console(width=200)
    with console.capture() as drawn:
        console.print(requests_table([row]))
    assert "a?2Jb" in drawn.get()
