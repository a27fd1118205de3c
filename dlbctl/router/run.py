"""Puts a root or leaf process together from its configuration, runs it, and keeps it to its file."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from dlbctl.core.errors import ConfigError
from dlbctl.router.access_log import AccessLog
from dlbctl.router.admin import INSPECT_PATH, Admin, AdminProtocol, leaf_view
from dlbctl.router.config import LeafFile, RootFile, admin_address
from dlbctl.router.control import Control
from dlbctl.router.downstream import Downstream
from dlbctl.router.eventlog import tier_of
from dlbctl.router.inherited import Inherited, open_sockets
from dlbctl.router.lifecycle import Lifecycle, hosted, url_of
from dlbctl.router.listener import Listener, PeerListener, Serve
from dlbctl.router.metrics import Metrics
from dlbctl.router.notify import Notifier
from dlbctl.router.probe import Prober
from dlbctl.router.reload import Reload, Source
from dlbctl.router.request import Request
from dlbctl.router.router import Router
from dlbctl.router.served import LocalCells, ServedCell
from dlbctl.router.state_stream import StatePublisher
from dlbctl.router.wheel import NEVER

Announce = Callable[[str, str], None]


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    """Stand in as uvicorn's application where a protocol class answers by itself."""


def run_root(source: Source[RootFile], announce: Announce) -> None:
    """Run a root until a signal ends it. announce: told each listener's name and URL, once all accept."""
    _configure_logging()
    _run(_root(source, announce))


def run_leaf(source: Source[LeafFile], announce: Announce) -> None:
    """Run a leaf until a signal ends it."""
    _configure_logging()
    _run(_leaf(source, announce))


def _run(process: Coroutine[Any, Any, None]) -> None:
    import uvloop

    # What is loaded by now stays: the collector need not walk it again. Requests and connections leave no cycles
    # behind, so it need not walk often either (measured: 5 to 10 % of a request's CPU at the interpreter's threshold).
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    uvloop.run(process)


async def _root(source: Source[RootFile], announce: Announce) -> None:
    file, token = source.read()
    section = file.root
    tier, log = tier_of(file.tier(), _boot(), section.event_log)
    router = Router(tier, {}, asyncio.get_running_loop())
    cells = LocalCells(router, section.event_log)
    local = file.local_leaves()
    made = cells.prepare(local)
    _open_access_log(router, source, file.access_log.path)
    process = _Process(file, str(source.path), router)
    process.listen("listen", "listening", Listener(router, file.http))
    process.read(file, token)
    cells.read(local, made, section.probe_interval_ms / 1e3)
    prober = Prober(router, section.probe_interval_ms)

    def apply(file: RootFile, token: bytes) -> None:
        local, settings = file.local_leaves(), file.tier()
        made = cells.prepare(local)  # it may refuse, so it comes first
        process.read(file, token)
        tier.settings_changed(settings)
        tier.endpoints_changed(settings.endpoints)
        tier.targets_changed(settings.targets)
        cells.read(local, made, file.root.probe_interval_ms / 1e3)
        prober.interval_ms = file.root.probe_interval_ms
        prober.follow()
        router.retire_pools()
        router.changed()

    reload = Reload(source, (file, token), apply, process.notifier)
    process.keep_books()
    process.admin(Control(router, cells.cells.values, reload))
    for work in (cells.run, prober.run, router.keep_time, router.solver.run):
        process.life.background(work)
    if log is not None:
        process.life.background(log.run)
    try:
        await process.run(announce)
    finally:
        cells.close()
        router.close()
        if log is not None:
            log.close()


async def _leaf(source: Source[LeafFile], announce: Announce) -> None:
    file, token = source.read()
    tier, log = tier_of(file.tier(), _boot(), file.leaf.event_log)
    router = Router(tier, {}, asyncio.get_running_loop())
    cell = ServedCell(tier, log, router)
    _open_access_log(router, source, file.access_log.path)
    process = _Process(file, str(source.path), router)
    process.listen("listen", "listening", Listener(router, file.http))
    peers = PeerListener(router, file.http)
    publisher = StatePublisher(router)
    peers.add(b"/dlb/v1/state", publisher.serve)
    peers.add(INSPECT_PATH.encode(), _inspector(router, cell))
    process.listen("peer_listen", "peers", peers)
    process.read(file, token)

    def apply(file: LeafFile, token: bytes) -> None:
        process.read(file, token)
        cell.read(file.tier())
        router.retire_pools()
        router.changed()

    reload = Reload(source, (file, token), apply, process.notifier)
    process.keep_books()
    process.admin(Control(router, lambda: [cell], reload))
    for work in (cell.run, router.keep_time, router.solver.run):
        process.life.background(work)
    process.life.on_drain(publisher.stop)
    try:
        await process.run(announce)
    finally:
        router.close()
        cell.close()


class _Process:
    """What a root and a leaf process have in common: their sockets, their life, and the file they follow.

    name: of the file, for errors.
    """

    def __init__(self, file: RootFile | LeafFile, name: str, router: Router) -> None:
        self.notifier = Notifier(os.environ)
        self.life = Lifecycle(warm=router.warm, unready=router.unready, notifier=self.notifier)
        self._router = router
        admin = admin_address(file.section, file.role)
        self._sockets = open_sockets(file.section, admin, Inherited(os.environ), f"{name}: {file.role}")
        self._listeners: list[Listener] = []
        self._opened: list[tuple[str, str]] = []

    def listen(self, key: str, name: str, listener: Listener) -> None:
        """Serve the socket of a configuration key, if there is one. name: what it is announced as."""
        if key in self._sockets:
            sock, held = self._sockets[key]
            self.life.add(hosted(no_app, protocol=listener.protocol), sock, held=held)
            self._listeners.append(listener)
            self._opened.append((name, url_of(sock)))

    def admin(self, control: Control) -> None:
        """Serve operators, and those who only scrape."""
        sock, held = self._sockets["admin"]
        self.life.add(hosted(Admin(self._router, control).app(), protocol=AdminProtocol), sock, held=held)
        self.life.on_hangup(control.hung_up)
        if "metrics_listen" in self._sockets:
            sock, held = self._sockets["metrics_listen"]
            self.life.add(hosted(Metrics(self._router).app()), sock, held=held)
            self._opened.append(("metrics", f"{url_of(sock)}/metrics"))

    def keep_books(self) -> None:
        """Watch over requests beside their way: the audit, the loop's lag, the access log."""
        router = self._router
        self.life.background(router.audit.run)
        self.life.background(router.alarms.run)
        self.life.background(router.lag.run)
        self.life.on_cut(router.ledger.drain_is_over)
        log = router.ledger.access_log
        if log is not None:
            self.life.background(log.run)
            self.life.on_hangup(log.reopen)

    def read(self, file: RootFile | LeafFile, token: bytes) -> None:
        """Take over what a file says of the process itself."""
        self._router.token = token
        self._router.accept_priority = file.section.accept_priority
        self._router.limit_idle(file.section.upstream_idle_s or NEVER)
        self.life.readiness_grace_s = file.section.readiness_grace_s
        self.life.drain_s = file.section.drain_s
        for listener in self._listeners:
            listener.limits = file.http
            listener.half_close = file.section.half_close == "allow"

    async def run(self, announce: Announce) -> None:
        """Serve until a signal ends it."""

        def started() -> None:
            for name, url in self._opened:
                announce(name, url)

        await self.life.run(started)


def _open_access_log(router: Router, source: Source[Any], path: str) -> None:
    """Have the access log kept, if there is to be one. Before sockets are made: one that fails leaves none behind."""
    if not path:
        return
    tier = router.tier
    cell, root = (tier.settings.cell, tier.boot) if tier.role == "root" else ("", "")
    try:
        router.ledger.access_log = AccessLog(path, source=cell, root=root)
    except ConfigError as error:
        raise ConfigError(f"{source.path}: {error.message}") from error


def _boot() -> str:
    """Identifies this run of the process to its peers and begins the ids of its requests."""
    return secrets.token_hex(6)


def _inspector(router: Router, cell: ServedCell) -> Serve:
    def serve(downstream: Downstream, request: Request) -> None:
        downstream.reply(request, 200, msgspec.json.encode(leaf_view(cell, router.clock())))

    return serve


def _configure_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # httpx logs every poll.
    for name in ("httpx", "httpcore", "uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
