"""`dlbctl inspect` as a process: for people, for machines, in a pipe, on a terminal, with routers that go away."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dlbctl.commands.inspect import app
from dlbctl.core.snapshot import CellRow, CurveRow, EndpointRow, ServerRow
from tests.acceptance.commands import dlbctl, running
from tests.package import FOLDER

from .conftest import MODEL, OTHER, Routers, root_file, started

HEADS = {"endpoints": "ENDPOINT    POLICY", "curves": f"{MODEL} in eu"}
ROWS = {"cells": CellRow, "endpoints": EndpointRow, "servers": ServerRow, "curves": CurveRow}
TIME = re.compile(r"\d\d:\d\d:\d\d  every 1 s, Ctrl-C ends")


def read_json(text: str) -> Any:
    """Strictly: NaN and Infinity are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("what", ROWS)
def test_json_is_a_list_of_the_rows_that_are_documented(what: str, routers: Routers) -> None:
    code, out, err = routers.run("inspect", what, "--json")
    assert (code, err) == (0, "")
    rows = read_json(out)
    assert rows
    for row in rows:
        assert tuple(row) == ROWS[what].__struct_fields__


@pytest.mark.parametrize("what", ["endpoints", "curves"])
def test_a_pipe_gets_plain_text(what: str, routers: Routers) -> None:
    code, out, err = routers.run("inspect", what)
    assert (code, err) == (0, "")
    assert HEADS[what] in out
    assert "\x1b" not in out
    assert "…" not in out


def test_of_several_routers_each_has_its_address(routers: Routers) -> None:
    code, out, _ = routers.run("inspect", "cells", "--json", admin=routers.both)
    found = read_json(out)
    assert (code, list(found)) == (0, [routers.first, routers.second])
    assert [row["endpoint"] for row in found[routers.second]] == [MODEL]
    _, out, _ = routers.run("inspect", "cells", "--admin", f"{routers.first}, {routers.second}", admin="unix:/unused")
    assert [line for line in out.splitlines() if line.startswith("unix:")] == [routers.first, routers.second]


def test_a_router_that_is_away_hides_none_of_the_others(routers: Routers) -> None:
    gone = f"{routers.first}.gone"
    code, out, err = routers.run("inspect", "cells", admin=f"{gone},{routers.second}")
    assert code == 4
    assert routers.second in out
    assert err.startswith(f"dlbctl: error: the router at {gone} does not answer")
    code, out, _ = routers.run("inspect", "cells", "--json", admin=f"{gone},{routers.second}")
    assert (code, list(read_json(out))) == (4, [routers.second]), "the shape is that of two"


@pytest.mark.parametrize("flags", [(), ("--json",), ("--watch",)])
def test_nobody_there_is_code_4(flags: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = dlbctl("inspect", "cells", *flags, "--admin", f"unix:{tmp_path}/none.sock")
    assert (code, out) == (4, "")
    assert err.startswith(f"dlbctl: error: the router at unix:{tmp_path}/none.sock does not answer")
    assert len(err.splitlines()) == 2


def test_a_port_that_is_no_admin_listener_is_code_4(engines: list[str], tmp_path: Path) -> None:
    """Least of all a router's own port for clients, which is the likeliest mistake."""
    with running("root", "--config", root_file(tmp_path, "root", engines)) as root:
        for url in (engines[0], started(root)):
            code, out, err = dlbctl("inspect", "cells", "--admin", url.removeprefix("http://"))
            assert (code, out) == (4, "")
            assert "is no admin listener of dlbctl" in err


def test_a_listener_that_speaks_no_http_is_code_4() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "dlbctl", "inspect", "cells", "--admin", f"127.0.0.1:{port}"]
        with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asking:
            with listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            _, err = asking.communicate(timeout=20)
        assert asking.returncode == 4
        assert b"Traceback" not in err


# -- watching ----------------------------------------------------------------------------------------------


def test_watching_in_a_pipe_repeats_the_picture_and_ends_on_sigint(routers: Routers) -> None:
    with running("inspect", "cells", "--watch", "--admin", routers.first) as watching:
        for _ in range(2):
            watching.line("CELL")
        code, out, err = watching.end(signal.SIGINT)
    assert (code, err) == (0, "")
    assert len(TIME.findall(out)) >= 2
    assert "\x1b" not in out


def test_watching_as_json_is_a_document_a_line(routers: Routers) -> None:
    with running("inspect", "endpoints", "-w", "--json", "--admin", routers.first) as watching:
        lines = ["[" + watching.line("[") for _ in range(2)]
        code, _, err = watching.end(signal.SIGINT)
    assert (code, err) == (0, "")
    for line in lines:
        assert [row["endpoint"] for row in read_json(line)] == [MODEL, OTHER]


def test_watching_outlives_a_restart_of_the_router(engines: list[str], tmp_path: Path) -> None:
    config, address = root_file(tmp_path, "root", engines, MODEL), f"unix:{tmp_path}/root.sock"
    with running("root", "--config", config) as root:
        started(root)
        with running("inspect", "cells", "--watch", "--admin", address) as watching:
            watching.line("eu")
            root.end()
            watching.line(f"the router at {address} does not answer")
            with running("root", "--config", config):
                watching.line("eu")
                code, _, err = watching.end(signal.SIGINT)
    assert (code, err) == (0, "")


@contextmanager
def on_a_terminal(
    *words: str, columns: int, lines: int = 20, **extra: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal of that size, and the other end of it."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "DLBCTL_ADMIN"}}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), **extra}
    command = [sys.executable, "-m", "dlbctl", *words]
    with subprocess.Popen(command, cwd=FOLDER, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as made:
        os.close(theirs)
        try:
            yield made, ours
        finally:
            made.kill()
            os.close(ours)


def read_until(terminal: int, wanted: bytes) -> bytes:
    text = b""
    while wanted not in text:
        text += os.read(terminal, 65536)
    return text


def read_to_the_end(terminal: int) -> bytes:
    text = b""
    try:
        while piece := os.read(terminal, 65536):
            text += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    return text


def test_watching_on_a_terminal_keeps_to_its_own_screen_and_leaves_the_last_picture(routers: Routers) -> None:
    """A window of 60 columns: no line of the picture is longer, so none is wrapped onto the next."""
    words = ("inspect", "cells", "--watch", "--admin", routers.first)
    with on_a_terminal(*words, columns=60) as (watching, terminal):
        text = read_until(terminal, b"CELL")
        assert b"\x1b[?1049h" in text
        watching.send_signal(signal.SIGINT)
        text += read_to_the_end(terminal)
        assert watching.wait(20) == 0
    screen, _, after = text.partition(b"\x1b[?1049l")
    pictures = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", screen.replace(b"\x1b[H", b"\n")).decode().splitlines()
    assert max(map(len, pictures)) <= 60
    assert b"Traceback" not in text
    assert b"AGE" in after, "it can still be read, and whole"


def test_a_window_that_is_too_low_says_so(routers: Routers) -> None:
    with on_a_terminal("inspect", "curves", "-w", "--admin", routers.first, columns=80, lines=4) as (_, terminal):
        assert b"(4 more lines, for a taller window)" in read_until(terminal, b"window)")


def test_colour_is_for_terminals_that_want_it(routers: Routers) -> None:
    words = ("inspect", "cells", "--admin", routers.first)
    with on_a_terminal(*words, columns=200) as (_, terminal):
        assert b"\x1b[32mup" in read_to_the_end(terminal)
    with on_a_terminal(*words, columns=200, NO_COLOR="1") as (_, terminal):
        text = read_to_the_end(terminal)
        assert b"up" in text
        assert b"\x1b" not in text


def test_a_figure_is_never_cut_on_a_narrow_terminal(routers: Routers) -> None:
    with on_a_terminal("inspect", "servers", "--admin", routers.first, columns=40) as (_, terminal):
        text = read_to_the_end(terminal).decode()
    assert "…" not in text
    assert MODEL in text.split()


def test_the_help_says_which_router_is_asked_by_default() -> None:
    """Brackets in help are taken for styles and vanish."""
    told = " ".join(CliRunner().invoke(app, ["cells", "--help"], env={"COLUMNS": "200"}).output.split())
    assert "(default: DLBCTL_ADMIN, then the local socket, then the fleet of `dlbctl up`)" in told
