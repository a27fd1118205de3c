"""A fleet of processes: comes up in order, and however it ends, nothing of it is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlbctl.core.errors import UnreachableError, UsageError
from dlbctl.fleet.relay_control import send_command
from dlbctl.fleet.run_folder import FleetRecord, fresh_folder, read_record, stop_fleet
from tests.package import FOLDER

RUN_FLEET = Path(__file__).with_name("run_fleet.py")
# One region needs three processes and no relay, two need seven.
ONE = '[[region]]\nname = "a"\nengines = 2\n{a}\n'
TWO = ONE + '[[region]]\nname = "b"\nengines = 1\n{b}\n[delay_ms.a]\nb = 3\n'


class Fleet:
    """A fleet of stand-ins in a process of its own."""

    def __init__(self, folder: Path, run: Path, text: str, *words: str) -> None:
        self.folder = run
        (folder / "fleet.toml").write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, str(RUN_FLEET), str(folder / "fleet.toml"), str(self.folder), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(FOLDER)},
        )

    def ready(self) -> FleetRecord:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        return read_record(self.folder)

    def end(self, signum: signal.Signals | None = None) -> tuple[int, str]:
        """Exit code and stderr, after a signal if one is given."""
        if signum is not None:
            self.process.send_signal(signum)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


Start = Callable[..., Fleet]


def test_a_fleet_runs_the_dlbctl_that_starts_it_wherever_the_user_stands(tmp_path: Path) -> None:
    """A checkout of other sources, say: `python -m` looks there first."""
    (tmp_path / "dlbctl").mkdir()
    (tmp_path / "dlbctl" / "__init__.py").write_text("raise SystemExit(9)")
    run = "import subprocess, sys; sys.exit(subprocess.run([*Programs().leaf, '--help']).returncode)"
    code = f"from dlbctl.fleet.supervisor import Programs; {run}"
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    fleets: list[Fleet] = []

    def begin(
        *words: str, a: str = "", b: str | None = None, folder: Path = tmp_path, run: Path | None = None
    ) -> Fleet:
        fleets.append(Fleet(folder, run or folder / "run", (ONE if b is None else TWO).format(a=a, b=b), *words))
        return fleets[-1]

    yield begin
    for fleet in fleets:
        fleet.process.kill()
        fleet.process.communicate()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the two steps of reading
        return False


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


def all_gone(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def pids_in_session_folder(folder: Path) -> list[int]:
    """Every process that has this run's folder in its command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return [pid for pid in found if is_alive(pid)]


def test_it_comes_up_and_ctrl_c_ends_all_of_it(start: Start) -> None:
    fleet = start(a="demand = 2.5", b="")
    record = fleet.ready()
    assert all(is_alive(pid) for pid in record.pids.values())
    assert set(record.pids) == {"a-engine", "b-engine", "a-leaf", "b-leaf", "a-root", "b-root", "relay"}
    assert [len(region.engines) for region in record.regions] == [2, 1]
    assert record.regions[0].demand == 2.5
    # The stand-in root asks every leaf, so this goes through the relay, and pays for it.
    began_s = time.monotonic()
    assert urllib.request.urlopen(f"{record.regions[0].url}/readyz").status == 200
    assert time.monotonic() - began_s >= 2 * 2 * 0.003
    assert send_command(record.relay_control, "links")[0]["carried_bytes"] > 0
    assert fleet.end(signal.SIGINT) == (0, "")
    assert all_gone([*record.pids.values()])


def test_the_files_it_generated_stay_and_are_what_the_processes_were_given(start: Start) -> None:
    fleet = start("short", a="slots = 8", b="")
    record = fleet.ready()
    assert fleet.end()[0] == 0
    leaf = tomllib.loads((fleet.folder / "a-leaf.toml").read_text())
    assert [server["url"] for server in leaf["server"]] == list(record.regions[0].engines)
    assert leaf["server"][0]["slots"] == 8
    root = tomllib.loads((fleet.folder / "a-root.toml").read_text())
    assert root["cell"][0] == {"name": "a", "leaves": [record.regions[0].leaf]}
    assert root["cell"][1]["leaves"] == [link.url for link in record.links if link.source == "a"]
    assert (fleet.folder / "logs" / "a-root.log").read_text().startswith("listening http://")
    assert all_gone([*record.pids.values()])


def test_kill_9_of_the_supervisor_leaves_no_orphan_not_even_a_grandchild(start: Start) -> None:
    fleet = start(a='profile = "nested"', b='profile = "stubborn"')
    record = fleet.ready()
    log = fleet.folder / "logs" / "a-engine.log"
    nested = next(int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("nested"))
    assert is_alive(nested)
    fleet.process.kill()
    until(lambda: all_gone([*record.pids.values(), nested]))
    # What was left in the folder does not stand in the way of the next fleet.
    again = start()
    again.ready()
    assert again.end(signal.SIGTERM)[0] == 0


def test_an_engine_that_fails_ends_all_with_the_last_lines_of_its_log(start: Start) -> None:
    fleet = start(b='profile = "fails"')
    code, said = fleet.end()
    assert code == 1
    assert "b-engine" in said
    assert "ended with exit code 1 before it was ready" in said
    assert "engine: no GPU was found" in said
    assert "Traceback" not in said
    assert not pids_in_session_folder(fleet.folder)


def test_a_silent_process_is_named_after_the_time_out(start: Start) -> None:
    fleet = start("impatient", a='profile = "silent"')
    code, said = fleet.end()
    assert code == 1
    assert "a-engine" in said
    assert "was not ready within 2 s" in said
    assert not pids_in_session_folder(fleet.folder)


def test_ctrl_c_during_the_start_ends_what_was_started(start: Start) -> None:
    fleet = start(b='profile = "silent"')
    until(lambda: (fleet.folder / "a-leaf.toml").exists())
    assert fleet.end(signal.SIGINT) == (0, "")
    assert not pids_in_session_folder(fleet.folder)


def test_a_second_ctrl_c_waits_for_nobody(start: Start) -> None:
    fleet = start(a='profile = "stubborn"')
    record = fleet.ready()
    fleet.process.send_signal(signal.SIGINT)
    until(lambda: not is_alive(record.pids["a-root"]))
    began_s = time.monotonic()
    assert fleet.end(signal.SIGINT)[0] == 0
    assert time.monotonic() - began_s < 2
    assert all_gone([*record.pids.values()])


def test_a_process_that_dies_is_reported_once_and_the_rest_goes_on(start: Start) -> None:
    fleet = start(b="")
    record = fleet.ready()
    os.kill(record.pids["b-engine"], signal.SIGKILL)
    assert fleet.process.stderr is not None
    assert "b-engine" in (said := fleet.process.stderr.readline())
    assert "ended with signal SIGKILL; the rest goes on" in said
    assert urllib.request.urlopen(f"{record.regions[1].url}/readyz").status == 200
    code, more = fleet.end(signal.SIGINT)
    assert code == 0
    assert "ended with" not in more
    assert all_gone([*record.pids.values()])


def test_a_fleet_of_which_nothing_is_left_fails(start: Start) -> None:
    fleet = start()
    record = fleet.ready()
    for pid in record.pids.values():
        os.kill(pid, signal.SIGKILL)
    code, said = fleet.end()
    assert code == 1
    assert "every process of the fleet has ended" in said


def test_a_port_in_use_is_told_before_anything_starts(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fleet = start(a=f"port = {port}")
        code, said = fleet.end()
    assert code == 1
    assert f"port {port}, which the root of a should use: Address already in use" in said
    assert not list((fleet.folder / "logs").iterdir())


def test_a_detached_fleet_runs_on_until_it_is_stopped(start: Start) -> None:
    fleet = start("detach")
    record = fleet.ready()
    assert fleet.end()[0] == 0
    assert all(is_alive(pid) for pid in (record.pid, *record.pids.values()))
    assert stop_fleet(fleet.folder) == fleet.folder
    until(lambda: all_gone([record.pid, *record.pids.values()]))
    with pytest.raises(UnreachableError, match="no fleet runs here"):
        stop_fleet(fleet.folder)


def test_a_detached_fleet_that_fails_says_so_before_it_returns(start: Start) -> None:
    fleet = start("detach", a='profile = "fails"')
    code, said = fleet.end()
    assert code == 1
    assert "engine: no GPU was found" in said
    assert not pids_in_session_folder(fleet.folder)


def test_a_folder_holds_one_running_fleet(start: Start) -> None:
    first = start()
    first.ready()
    code, said = start().end()
    assert code == 1
    assert "another fleet runs in this folder" in said
    assert first.end(signal.SIGINT)[0] == 0


def test_a_long_folder_name_still_has_sockets(start: Start, tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20) / ("longer-" * 20)
    deep.mkdir(parents=True)
    fleet = start(folder=deep, b="")
    record = fleet.ready()
    assert send_command(record.relay_control, "links")
    assert len(record.regions[0].root_admin) < 108
    assert fleet.end(signal.SIGINT)[0] == 0
    assert not Path(record.relay_control).parent.exists()


def test_stop_finds_the_only_running_fleet_and_asks_which_of_two(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    homes = [fresh_folder(), fresh_folder()]
    fleets = [start(folder=home.parent, run=home) for home in homes]
    for fleet in fleets:
        fleet.ready()
    with pytest.raises(UsageError, match="2 fleets run"):
        stop_fleet(None)
    assert fleets[0].end(signal.SIGTERM)[0] == 0
    assert stop_fleet(None) == homes[1]
    assert fleets[1].end()[0] == 0
