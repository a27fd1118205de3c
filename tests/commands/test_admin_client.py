"""Which routers a command speaks to when nobody says: what answers on this machine, dead socket files or not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlbctl.commands.admin_client import addresses
from dlbctl.core.errors import UnreachableError, UsageError
from dlbctl.fleet.run_folder import FleetRecord, RegionRecord, RunFolder, fresh_folder


class Machine:
    """A user's runtime folder, with sockets and fleets in it."""

    def __init__(self, runtime: Path, open_until_the_end: ExitStack) -> None:
        self.folder = runtime / "dlbctl"
        self.folder.mkdir()
        self._open = open_until_the_end

    def socket(self, path: Path, *, alive: bool = True) -> str:
        """A socket file, with somebody who listens behind it or nobody any more."""
        with ExitStack() as closed_at_once:
            listener = socket.socket(socket.AF_UNIX)
            (self._open if alive else closed_at_once).enter_context(listener)
            listener.bind(str(path))
            listener.listen()
        return f"unix:{path}"

    def fleet(self, *roots: bool) -> list[str]:
        """A fleet that is up; each root lives or was killed. Returns the admin addresses of all."""
        folder = RunFolder(fresh_folder())
        self._open.callback(folder.release)
        admins = [self.socket(folder.socket(f"{number}-root"), alive=root) for number, root in enumerate(roots)]
        regions = tuple(_region(str(number), admin) for number, admin in enumerate(admins))
        folder.write_record(
            FleetRecord(
                pid=1, directory=str(folder.path), model="m", relay_control="", regions=regions, links=(), pids={}
            )
        )
        return admins


def _region(name: str, admin: str) -> RegionRecord:
    return RegionRecord(name=name, url="", demand=1.0, root_admin=admin, leaf="", leaf_admin="", engines=())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DLBCTL_ADMIN", raising=False)
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def test_what_was_named_is_used_whatever_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.socket(machine.folder / "root.sock")
    monkeypatch.setenv("DLBCTL_ADMIN", "unix:/a, 127.0.0.1:1")
    assert addresses(None) == ["unix:/a", "127.0.0.1:1"]
    assert addresses("unix:/b") == ["unix:/b"]


def test_the_root_at_its_default_socket_comes_before_the_leaf_and_any_fleet(machine: Machine) -> None:
    leaf = machine.socket(machine.folder / "leaf.sock")
    machine.fleet(True)
    assert addresses(None) == [leaf]
    root = machine.socket(machine.folder / "root.sock")
    assert addresses(None) == [root]


def test_the_socket_file_of_a_killed_router_hides_neither_leaf_nor_fleet(machine: Machine) -> None:
    machine.socket(machine.folder / "root.sock", alive=False)
    fleet = machine.fleet(True, True)
    assert addresses(None) == fleet
    leaf = machine.socket(machine.folder / "leaf.sock")
    assert addresses(None) == [leaf]


def test_a_killed_root_of_the_fleet_does_not_keep_the_others_from_being_seen(machine: Machine) -> None:
    first, _, third = machine.fleet(True, False, True)
    assert addresses(None) == [first, third]


def test_of_several_fleets_each_is_listed_ready_to_be_chosen(machine: Machine) -> None:
    one, other = machine.fleet(True, True), machine.fleet(True)
    with pytest.raises(UsageError, match="2 fleets") as caught:
        addresses(None)
    assert f"export DLBCTL_ADMIN={one[0]},{one[1]}\n" in caught.value.hint + "\n"
    assert f"export DLBCTL_ADMIN={other[0]}\n" in caught.value.hint + "\n"


def test_with_nothing_running_the_way_to_name_a_router_is_told(machine: Machine) -> None:
    machine.socket(machine.folder / "root.sock", alive=False)
    machine.fleet(False)
    with pytest.raises(UnreachableError, match="no running router found") as caught:
        addresses(None)
    assert "DLBCTL_ADMIN" in caught.value.hint


def test_a_fleet_that_is_still_starting_is_none_yet(machine: Machine) -> None:
    folder = RunFolder(fresh_folder())
    with pytest.raises(UnreachableError):
        addresses(None)
    folder.release()
