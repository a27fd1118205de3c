"""However `dlbctl up` ends, no process of its fleet outlives it: engines, leaves, roots and relay as users run them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dlbctl.fleet.lifeline import LIFELINE_VARIABLE
from dlbctl.fleet.run_folder import FleetRecord, read_record

from .commands import Running, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]

FLEET = """
[[region]]
name = "us-east-1"
engines = 2
[[region]]
name = "us-west-2"
engines = 1
"""
LONG = {"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    with running("up", tmp_path / "fleet.toml", "--dir", tmp_path / "run") as command:
        yield command


def ready(up: Running, folder: Path) -> FleetRecord:
    up.line("stop:")
    return read_record(folder / "run")


def processes_of(fleet: FleetRecord) -> set[int]:
    """Every process whose environment holds the fleet's lifeline; zombies have none."""
    lifeline = Path(fleet.regions[0].root_admin.removeprefix("unix:")).with_name("lifeline")
    mark = f"{LIFELINE_VARIABLE}={lifeline}\0".encode()
    return {int(entry.parent.name) for entry in Path("/proc").glob("[0-9]*/environ") if mark in _read(entry)}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def until_none_is_left(fleet: FleetRecord, *, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while left := processes_of(fleet):
        assert time.monotonic() < deadline_s, f"still alive: {left}"
        time.sleep(0.05)


def test_kill_9_of_up_leaves_no_process_alive(up: Running, tmp_path: Path) -> None:
    record = ready(up, tmp_path)
    assert processes_of(record) == set(record.pids.values())
    assert len(record.pids) == 7
    with httpx.stream("POST", f"{record.regions[0].url}/v1/chat/completions", json=LONG, trust_env=False) as answer:
        assert answer.status_code == 200
        os.kill(up.pid, signal.SIGKILL)
        # The lifeline gives each process five seconds for an orderly end.
        until_none_is_left(record, within_s=10.0)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_within_ten_seconds_though_a_stream_runs(
    up: Running, tmp_path: Path, signum: signal.Signals
) -> None:
    record = ready(up, tmp_path)
    assert processes_of(record) == set(record.pids.values())
    with httpx.stream("POST", f"{record.regions[1].url}/v1/chat/completions", json=LONG, trust_env=False) as answer:
        assert answer.status_code == 200
        began_s = time.monotonic()
        ended = up.end(signum, within_s=10.0)
        assert time.monotonic() - began_s < 10.0
    assert ended.code == 0, ended.err
    assert not processes_of(record)
    assert "Traceback" not in "".join(log.read_text() for log in (tmp_path / "run" / "logs").iterdir())
