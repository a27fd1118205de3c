"""The servers of one cell: those of the file, less and plus what an operator changed while the router runs."""

from __future__ import annotations

from collections.abc import Iterable

from dlbctl.core.errors import DlbctlError
from dlbctl.core.settings import TargetSettings


class Roster:
    """What the file lists, and beside it what was added and removed live, by address.

    The live changes last until a restart. A change that the file has come to make as well is forgotten.
    """

    def __init__(self, listed: Iterable[TargetSettings]) -> None:
        self.added: dict[str, TargetSettings] = {}
        self.removed: dict[str, TargetSettings] = {}
        self.read(listed)

    def __repr__(self) -> str:
        return f"<Roster {len(self._listed)} listed, {len(self.added)} added, {len(self.removed)} removed>"

    @property
    def servers(self) -> tuple[TargetSettings, ...]:
        """Those that requests may be sent to."""
        left = (server for server in self._listed if _address(server) not in self.removed)
        return (*left, *self.added.values())

    def read(self, listed: Iterable[TargetSettings]) -> None:
        """Take over what the file lists now."""
        self._listed = tuple(listed)
        addresses = {_address(server) for server in self._listed}
        self.removed = {address: server for address, server in self.removed.items() if address in addresses}
        names = {server.name for server in self._listed if _address(server) not in self.removed}
        self.added = {
            address: server
            for address, server in self.added.items()
            if address not in addresses and server.name not in names
        }

    def add(self, server: TargetSettings) -> None:
        """Add a server, or bring back one of the file as the file has it. DlbctlError when it is there already."""
        address = _address(server)
        name = self.removed.get(address, server).name
        for known in self.servers:
            if _address(known) == address or known.name == name:
                raise DlbctlError(f"there is a server {known.name} at {_address(known)} already")
        if self.removed.pop(address, None) is None:
            self.added[address] = server

    def remove(self, address: str) -> None:
        """Send no more requests to an address. DlbctlError with the servers there are when it is none of theirs."""
        if self.added.pop(address, None) is not None:
            return
        listed = next((server for server in self._listed if _address(server) == address), None)
        if listed is None or address in self.removed:
            there = ", ".join(_address(server) for server in self.servers) or "none"
            raise DlbctlError(f"there is no server at {address}", hint=f"there is: {there}")
        self.removed[address] = listed


def _address(server: TargetSettings) -> str:
    return server.addresses[0]
