"""Starts and stops one router process: sockets, signals, readiness, drain. Nothing else touches them.

uvicorn hosts the listeners, but its own signal handling, exit timing and drain know only its own protocol
classes: here they are switched off and done in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import uvicorn

from dlbctl.core.errors import ConfigError, DlbctlError
from dlbctl.router.notify import Notifier
from dlbctl.router.sections import host_and_port

_LOG = logging.getLogger(__name__)

BACKLOG = 2048
POLL_S = 0.05
SHORT_S = 2.0  # a drain no longer than this needs no words
CUT_S = 1.0  # for connections that were cut to be gone
WARM_UP_S = 5.0  # at most, for every target to have answered


class HostedServer(uvicorn.Server):
    """uvicorn's server, its signals left to the life cycle; it waits to be stopped, not asking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def close_listener(self) -> None:
        """Accept no more. Connections stay, idle ones too: a request may be on its way on them."""
        for server in self.servers:
            server.close()

    def stop(self) -> None:
        """Accept no more, finish what is under way, end."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Nothing to do until then: the dates and limits that uvicorn keeps here are not used."""
        await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone."""
        yield


def hosted(app: Any, *, protocol: Any = "httptools") -> HostedServer:
    """A uvicorn server of one listener. protocol: the class (or maker) of its connections."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
    )
    return HostedServer(config)


def bind(where: str, address: str) -> socket.socket:
    """A bound socket for host:port or unix:PATH (mode 0600). DlbctlError says what is in the way.

    where: the file and key that name the address.
    """
    if address.startswith("unix:"):
        return _bind_unix(where, Path(address.removeprefix("unix:")))
    host, port = host_and_port(address, where)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)  # here, where it is heard when the address is taken: uvloop does not tell
    except OSError as error:
        sock.close()
        raise DlbctlError(
            f"{where}: cannot listen on {address}: {error.strerror or error}",
            hint="another process may hold it (ss -ltnp), or the address is not this machine's",
        ) from error
    return sock


def _bind_unix(where: str, path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.parent.stat().st_uid not in {0, os.getuid()}:
            raise ConfigError(f"{where}: the folder of {path} is another user's", hint="give a socket of your own")
        _remove_dead_socket(where, path)
        mask = os.umask(0o177)
        try:
            sock.bind(str(path))
            sock.listen(BACKLOG)
        finally:
            os.umask(mask)
    except OSError as error:
        sock.close()
        raise DlbctlError(f"{where}: cannot make the socket {path}: {error.strerror or error}") from error
    return sock


def _remove_dead_socket(where: str, path: Path) -> None:
    """Clear away what a killed process left; a living one keeps its socket."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{where}: {path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise DlbctlError(f"{where}: {path} belongs to a running process", hint="give this one another admin socket")


def url_of(sock: socket.socket) -> str:
    """Where a bound socket is reached, for people."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Lifecycle:
    """One process from its first socket to its exit.

    warm: whether the process knows enough to serve as well as one that has run for long. unready: called when it
    should no longer call itself ready. Background work is cancelled after the last answer.
    """

    def __init__(self, *, warm: Callable[[], bool], unready: Callable[[], None], notifier: Notifier) -> None:
        self.readiness_grace_s = 0.0
        self.drain_s = 0.0
        self._warm = warm
        self._unready = unready
        self._notifier = notifier
        self._servers: list[tuple[HostedServer, socket.socket]] = []
        self._held: list[HostedServer] = []
        self._paths: list[tuple[Path, int]] = []
        self._on_drain: list[Callable[[], None]] = []
        self._on_cut: list[Callable[[], None]] = []
        self._on_hangup: list[Callable[[], None]] = []
        self._work: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._stop = asyncio.Event()
        self._signals: list[int] = []

    def __repr__(self) -> str:
        return f"<Lifecycle {len(self._servers)} listeners, {'stopping' if self.stopping else 'running'}>"

    @property
    def stopping(self) -> bool:
        """Whether it has been told to end."""
        return self._stop.is_set()

    def add(self, server: HostedServer, sock: socket.socket, *, held: bool) -> None:
        """Serve a socket for as long as the process runs. held: whoever started this process has it open as well."""
        self._servers.append((server, sock))
        if held:
            self._held.append(server)
        elif sock.family == socket.AF_UNIX:
            path = Path(sock.getsockname())
            self._paths.append((path, path.stat().st_ino))

    def background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine for as long as the process runs; if it fails, the process does."""
        self._work.append(work)

    def on_drain(self, act: Callable[[], None]) -> None:
        """Do this when no new connections are accepted any more."""
        self._on_drain.append(act)

    def on_cut(self, act: Callable[[], None]) -> None:
        """Do this when the time to drain is over, before what is left is cut."""
        self._on_cut.append(act)

    def on_hangup(self, act: Callable[[], None]) -> None:
        """Do this on SIGHUP, which then ends the process no more."""
        self._on_hangup.append(act)

    async def run(self, started: Callable[[], None]) -> None:
        """Serve until a signal, then drain. started: called when every listener accepts."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if self._on_hangup:
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        working = [loop.create_task(work()) for work in self._work]
        if self._held:
            # Its clients have been served so far, or wait: neither should meet a router that knows no server yet.
            await self._until(lambda: self._warm() or self.stopping, WARM_UP_S)
        serving = [loop.create_task(server.serve(sockets=[sock])) for server, sock in self._servers]
        stopping = loop.create_task(self._stop.wait())
        try:
            while not all(server.started for server, _ in self._servers):
                await asyncio.sleep(0.005)
            started()
            self._notifier.ready()
            done, _ = await asyncio.wait([stopping, *serving, *working], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._drain(serving)
        finally:
            await _cancel([stopping, *working, *serving])
            self._remove_paths()

    def _signalled(self, number: int) -> None:
        self._signals.append(number)
        self._stop.set()

    def _hung_up(self) -> None:
        for act in self._on_hangup:
            act()

    async def _drain(self, serving: list[asyncio.Task[None]]) -> None:
        """Unready, still accepting for the grace; then no new connections; then what is left is cut.

        A socket that somebody else holds is closed at once: no connection is refused for it, and the process that
        takes this one's place is to have them. The grace is then for what clients send on idle connections.
        """
        self._notifier.stopping()
        self._unready()
        for server in self._held:
            server.close_listener()
        if self._signals and self._signals[-1] == signal.SIGTERM:
            # Balancers in front need a moment to see /readyz; at a terminal nobody does.
            await self._until(self._abandoned, self.readiness_grace_s)
        self._remove_paths()
        for server, _ in self._servers:
            server.stop()
        for act in self._on_drain:
            act()
        began_s = time.monotonic()
        await self._until(lambda: all(task.done() for task in serving), min(SHORT_S, self.drain_s))
        if open_ := sum(len(server.server_state.connections) for server, _ in self._servers):
            # The admin listener is closed by now: a successor may want its address.
            _LOG.info("drain: %d connections are still open and have %g s to end", open_, self.drain_s)
        await self._until(lambda: all(task.done() for task in serving), began_s + self.drain_s - time.monotonic())
        for act in self._on_cut:
            act()
        left = [connection for server, _ in self._servers for connection in server.server_state.connections]
        if left:
            _LOG.warning("drain: %d connections cut after %.1f s", len(left), time.monotonic() - began_s)
        for connection in left:
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        await self._until(lambda: all(task.done() for task in serving), CUT_S, even_now=True)

    def _abandoned(self) -> bool:
        """Nobody can come any more, and nobody is left."""
        return len(self._held) == len(self._servers) and not any(s.server_state.connections for s in self._held)

    async def _until(self, true: Callable[[], bool], limit_s: float, *, even_now: bool = False) -> None:
        """Wait for a condition; a second signal ends every wait but `even_now`: whoever asks twice means now."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        while not true() and loop.time() < deadline_s and (even_now or len(self._signals) < 2):
            await asyncio.sleep(POLL_S)

    def _remove_paths(self) -> None:
        """Clear away our unix sockets while they are open: once closed, the paths may be another process's."""
        paths, self._paths = self._paths, []
        for path, inode in paths:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    path.unlink()


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
