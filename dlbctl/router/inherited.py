"""Listening sockets that whoever started this process handed over (systemd's protocol, sd_listen_fds(3)).

Who holds the sockets can start a new process before the old one has drained, and no connection is refused.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import MutableMapping
from typing import NamedTuple

import msgspec

from dlbctl.core.errors import ConfigError
from dlbctl.router.lifecycle import bind
from dlbctl.router.sections import RouterSection, host_and_port

FIRST_FD = 3
LISTENERS = ("listen", "peer_listen", "metrics_listen")
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Inherited:
    """The sockets, each taken by the listener that it is for."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Take the sockets over, and their variables out of the environment: no child of ours is meant by them."""
        pid, count, names = (environment.pop(name, "") for name in VARIABLES)
        self._left: list[tuple[str, socket.socket]] = []
        if pid != str(os.getpid()):
            return
        if not (count.isascii() and count.isdigit()):
            raise ConfigError(f"LISTEN_FDS: {count!r} is not a number of sockets")
        called = names.split(":") if names else []
        for index in range(int(count)):
            name = called[index] if index < len(called) else "unknown"
            self._left.append((name, _listening(FIRST_FD + index, name)))

    def __repr__(self) -> str:
        return f"<Inherited {len(self._left)} left>"

    def take(self, listener: str, address: str) -> socket.socket | None:
        """The socket that bears a listener's name, or else is bound to its address; None when there is none."""
        named = [entry for entry in self._left if entry[0] == listener]
        fitting = named or [entry for entry in self._left if _is_at(entry[1], address)]
        if len(fitting) > 1:
            raise ConfigError(f"{len(fitting)} inherited sockets are for {listener}", hint="hand over one for each")
        if not fitting:
            return None
        self._left.remove(fitting[0])
        return fitting[0][1]

    def check_all_taken(self, listeners: str) -> None:
        """Raise ConfigError for a socket that no listener has taken: its connections would never be answered."""
        for name, sock in self._left:
            raise ConfigError(
                f"the inherited socket {name} at {address_of(sock)} fits no listener",
                hint=f"name it (FileDescriptorName=) {listeners}, or bind it to the address of one of them",
            )


class Listening(NamedTuple):
    """A listener's socket. held: whoever started this process has it open as well."""

    sock: socket.socket
    held: bool


def open_sockets(section: RouterSection, admin: str, inherited: Inherited, where: str) -> dict[str, Listening]:
    """A socket for each listener of a section, by its key: handed over, or else bound here. where: the section."""
    addresses = {key: getattr(section, key) for key in LISTENERS if hasattr(section, key)}
    addresses["admin"] = admin
    held = {key: sock for key, address in addresses.items() if (sock := inherited.take(key, address)) is not None}
    inherited.check_all_taken(", ".join(addresses))
    # Where they are bound, and not only what the file says, must be safe to listen on.
    as_bound = msgspec.structs.replace(section, **{key: address_of(sock) for key, sock in held.items()})
    as_bound.check(f"{where}, handed over")
    return {
        key: Listening(held[key], True) if key in held else Listening(bind(f"{where}.{key}", address), False)
        for key, address in addresses.items()
        if address or key in held
    }


def address_of(sock: socket.socket) -> str:
    """host:port or unix:PATH, as a configuration would have it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listening(fd: int, name: str) -> socket.socket:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError as error:
        raise ConfigError(f"LISTEN_FDS: the inherited descriptor {fd} ({name}) is not open") from error
    sock = socket.socket(fileno=fd) if is_socket else None
    if sock is None or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError(f"LISTEN_FDS: the inherited descriptor {fd} ({name}) is not a listening stream socket")
    sock.set_inheritable(False)
    return sock


def _is_at(sock: socket.socket, address: str) -> bool:
    if not address or address.startswith("unix:") or sock.family == socket.AF_UNIX:
        return address_of(sock) == address
    bound: tuple[str, int] = sock.getsockname()[:2]
    return bound == host_and_port(address, "listen")
