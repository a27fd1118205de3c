"""Every file in examples/configs is valid, starts, answers and ends; only ports differ from what stands there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from dlbctl.commands.check import check

from .acceptance.commands import EXAMPLES, Running, running, until_ready

CONFIGS = EXAMPLES / "configs"
CELLS = ("us-ashburn", "eu-frankfurt", "ap-seoul")
MODEL = "qwen3-35b"


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    """Two engines that all routers share."""
    with running("engine", "--count", 2, "--model", MODEL, "--time-factor", 50) as process:
        yield ["http:" + process.line("http:") for _ in range(2)]


class Start:
    """Starts routers from the examples, each with an admin socket and ports of its own."""

    def __init__(self, folder: Path, running_until_the_end: ExitStack) -> None:
        self._folder = folder
        self._running = running_until_the_end
        self.started: list[Running] = []

    def root(self, file: str, **overrides: str) -> str:
        """Start a root; overrides are keys and values of DLBCTL_ variables. Returns the clients' URL."""
        return self._start("root", file, {"root__listen": "127.0.0.1:0"} | overrides).line("listening")

    def leaf(self, file: str, **overrides: str) -> Running:
        """Start a leaf and do not wait: its line `peers` says where it is."""
        return self._start("leaf", file, {"leaf__peer_listen": "127.0.0.1:0"} | overrides)

    def _start(self, role: str, file: str, values: dict[str, str]) -> Running:
        values[f"{role}__admin"] = f"unix:{self._folder / str(len(self.started))}.sock"
        values[f"{role}__readiness_grace_s"] = "0"
        environment = {f"DLBCTL_{key.upper()}": value for key, value in values.items()}
        command = running(role, "--config", CONFIGS / file, environment=environment)
        self.started.append(self._running.enter_context(command))
        return self.started[-1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield Start(tmp_path, stack)


def test_each_file_passes_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(CONFIGS.rglob("*.toml"))
    assert len(files) >= 10
    for file in files:
        check(file)
        assert capsys.readouterr().out.endswith(": ok\n"), file


def test_a_single_process_serves_its_two_servers(start: Start, engines: list[str]) -> None:
    servers = {f"cell__here__server__{number}__url": url for number, url in enumerate(engines)}
    assert_it_answers(start.root("single.toml", **servers))
    assert_all_end_well(start)


def test_root_and_leaf_of_one_region(start: Start, engines: list[str]) -> None:
    servers = {f"server__{number}__url": url for number, url in enumerate(engines)}
    leaf = start.leaf("one-region/leaf.toml", **servers).line("peers")
    assert_it_answers(start.root("one-region/root.toml", cell__us_ashburn__leaves=f'["{leaf}"]'))
    assert_all_end_well(start)


def test_three_regions_that_share_a_token(start: Start, engines: list[str], tmp_path: Path) -> None:
    token = tmp_path / "peer.token"
    token.write_text("a-secret-of-all-regions\n")
    own = {"leaf__peer_token_file": str(token), "server__0__url": engines[0]}
    leaves = [start.leaf(f"three-regions/{cell}-leaf.toml", **own) for cell in CELLS]
    cells = {
        f"cell__{cell.replace('-', '_')}__leaves": f'["{leaf.line("peers")}"]'
        for cell, leaf in zip(CELLS, leaves, strict=True)
    }
    url = start.root("three-regions/root.toml", root__peer_token_file=str(token), **cells)
    assert_it_answers(url)
    assert_all_end_well(start)


# One of them is a quick test; the others take as long each.
FLEETS = [
    pytest.param(path.name, marks=[] if "laptop" in path.name else pytest.mark.slow)
    for path in sorted(CONFIGS.glob("fleet-*.toml"))
]


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_comes_up_and_ctrl_c_ends_it(name: str, tmp_path: Path) -> None:
    copy = tmp_path / name
    copy.write_text((CONFIGS / name).read_text().replace("port = 8080", "port = 0"))
    with running("up", copy, "--dir", tmp_path / "run") as up:
        url = "http:" + up.line("http:")
        assert_it_answers(url)
        assert up.end(signal.SIGINT).code == 0


def assert_it_answers(url: str) -> None:
    until_ready(url)
    question = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/chat/completions", json=question, timeout=30, trust_env=False)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 4)


def assert_all_end_well(start: Start) -> None:
    for process in start.started:
        os.kill(process.pid, signal.SIGTERM)
    for process in start.started:
        code, _, err = process.wait(within_s=20)
        assert code == 0, err
        assert "Traceback" not in err
