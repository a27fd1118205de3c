"""What users get wrong, told to real commands: the exit code, one message that names the place, never a traceback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import pytest

from .commands import EXAMPLES, dlbctl, running

SAMPLE = EXAMPLES / "traces" / "short.jsonl"
ROW = {"timestamp": 0, "input_length": 600, "output_length": 8, "hash_ids": [0, 1]}
ROOT = """
[root]
listen = "127.0.0.1:{port}"
admin = "unix:{folder}/root.sock"
readiness_grace_s = 0
[[endpoint]]
name = "m"
[[cell]]
name = "far"
leaves = ["http://127.0.0.1:{leaf}"]
"""


def unused_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace.jsonl:1: the trace is empty"),
        ("timestamp,input\n1,2\n", "trace.jsonl:1: not a trace: the first line is not JSON"),
        (lines(ROW | {"timestamp": 9}, ROW, ROW), "2 of 3 rows are unusable, first line 2: 0 ms after 9 ms"),
        (lines(ROW | {"hash_ids": [0]}), "1 of 1 rows are unusable, first line 1: 1 hash_ids for 600 tokens, not 2"),
    ],
)
def test_a_file_that_is_no_trace_exits_3(text: str, message: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    code, out, err = dlbctl("replay", trace)
    assert (code, out) == (3, "")
    assert message in err


def test_a_target_that_is_down_exits_4_and_is_named() -> None:
    target = f"http://127.0.0.1:{unused_port()}"
    code, out, err = dlbctl("replay", SAMPLE, "--target", target)
    assert (code, out) == (4, "")
    assert f"{target}: Connection refused" in err


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("[[region]]\nname = 'a'\nengnes = 2\n", ["unknown key region[0].engnes", "did you mean engines?"]),
        ("[[region]]\nname = 'a'\n[[region]]\nname = 'a'\n", ["region[1].name: 'a' appears twice"]),
        ("[[region]\n", ["not valid TOML"]),
    ],
)
def test_a_fleet_file_with_a_fault_exits_3_before_anything_starts(
    text: str, messages: list[str], tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(text)
    code, out, err = dlbctl("up", fleet, "--dir", tmp_path / "run")
    assert (code, out) == (3, "")
    assert str(fleet) in err
    for message in messages:
        assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (("listen =", "lisen ="), ["unknown key root.lisen", "did you mean listen?"]),
        (('"far"', '"far"\nleaves = ["http://127.0.0.1:1"]\n[[cell]]\nname = "far"'), ["the same name 'far'"]),
        (('"m"', '"m"\npolicy = "discrete/latancy"'), ["latancy", "latency"]),
    ],
)
def test_a_root_file_with_a_fault_exits_3_and_says_what_would_be_right(
    change: tuple[str, str], messages: list[str], tmp_path: Path
) -> None:
    config = tmp_path / "root.toml"
    config.write_text(ROOT.format(port=0, folder=tmp_path, leaf=1).replace(*change))
    for command in (("check", config), ("root", "--config", config)):
        code, out, err = dlbctl(*command)
        assert (code, out) == (3, "")
        for message in messages:
            assert message in err


def test_a_port_in_use_exits_1_and_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "root.toml").write_text(ROOT.format(port=port, folder=tmp_path, leaf=1))
        (tmp_path / "fleet.toml").write_text(f"[[region]]\nname = 'a'\nport = {port}\n")
        for command in (
            ("root", "--config", tmp_path / "root.toml"),
            ("up", tmp_path / "fleet.toml", "--dir", tmp_path / "run"),
            ("engine", "--port", port),
        ):
            code, out, err = dlbctl(*command)
            assert (code, out) == (1, "")
            assert str(port) in err
            assert "in use" in err


def test_a_root_whose_leaves_cannot_be_reached_starts_lives_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "root.toml").write_text(ROOT.format(port=0, folder=tmp_path, leaf=unused_port()))
    with running("root", "--config", tmp_path / "root.toml") as root:
        url = root.line("listening ")
        with httpx.Client(base_url=url, trust_env=False) as client:
            ready, live = client.get("/readyz"), client.get("/livez")
            assert (ready.status_code, ready.text) == (503, "nothing is routable\n")
            assert (live.status_code, live.text) == (200, "ok\n")
            answer = client.post("/v1/chat/completions", json={"model": "m", "messages": []})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_routable_cell")
        code, out, err = dlbctl("inspect", "endpoints", "--admin", f"unix:{tmp_path}/root.sock")
        assert (code, err) == (0, "")
        assert "0/0" in out
        assert root.end().code == 0


def test_routers_that_do_not_run_exit_4(tmp_path: Path) -> None:
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    for command in (
        ("inspect", "cells"),
        ("policy", "set", "m", "discrete/rif"),
        ("inspect", "cells", "--admin", f"unix:{tmp_path}/none.sock"),
        ("up", "--stop"),
    ):
        code, out, err = dlbctl(*command, environment=runtime)
        assert (code, out) == (4, ""), command
        assert err.startswith("dlbctl: error: ")
