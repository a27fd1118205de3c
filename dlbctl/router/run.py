"""Puts a root or leaf process together from its configuration and runs it."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from dlbctl.core.settings import TierSettings
from dlbctl.core.tier import Tier
from dlbctl.router.access_log import AccessLog
from dlbctl.router.admin import INSPECT_PATH, Admin, leaf_view
from dlbctl.router.config import (
    LeafFile,
    RootFile,
    admin_address,
    read_token,
)
from dlbctl.router.discovery import Discovery
from dlbctl.router.downstream import Downstream
from dlbctl.router.eventlog import EventLog, RecordedTier
from dlbctl.router.lifecycle import Lifecycle, bind, hosted, url_of
from dlbctl.router.listener import Listener, PeerListener, Serve
from dlbctl.router.metrics import Metrics
from dlbctl.router.pace import Pace
from dlbctl.router.probe import Prober
from dlbctl.router.request import Request
from dlbctl.router.router import Router
from dlbctl.router.sections import AccessLogSection, RouterSection
from dlbctl.router.state_stream import StatePublisher
from dlbctl.router.wheel import NEVER

Announce = Callable[[str, str], None]


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    """Stand in as uvicorn's application where a protocol class answers by itself."""


def run_root(settings: RootFile, announce: Announce, file: str) -> None:
    """Run a root until a signal ends it. announce: told each listener's name and URL, once all accept.

    file: what the settings were read from, for errors.
    """
    _configure_logging()
    _run(_root(settings, announce, f"{file}: root"))


def run_leaf(settings: LeafFile, announce: Announce, file: str) -> None:
    """Run a leaf until a signal ends it, likewise."""
    _configure_logging()
    _run(_leaf(settings, announce, f"{file}: leaf"))


def _run(process: Any) -> None:
    import uvloop

    # What is loaded by now stays: the collector need not walk it again. Requests and connections leave no cycles
    # behind, so it need not walk often either (measured: 5 to 10 % of a request's CPU at the interpreter's threshold).
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    uvloop.run(process)


async def _root(settings: RootFile, announce: Announce, where: str) -> None:
    section = settings.root
    boot = _boot()
    logs: list[EventLog] = []
    tier = _tier(settings.tier(), boot, section.event_log, logs)
    local = {
        address: _tier(leaf, boot, section.event_log and f"{section.event_log}.{quote(leaf.cell, safe='')}", logs)
        for address, leaf in settings.local_leaves().items()
    }
    router = _router(tier, local, section)
    life = _lifecycle(section, router)
    _background_logs(life, logs)
    clients = Listener(router, settings.http, half_close=_half_close(section))
    opened = [("listening", _open(life, f"{where}.listen", section.listen, clients))]
    opened += _open_admin(life, where, admin_address(section, "root"), section, router)
    _keep_books(life, settings.access_log, router)
    for leaf in local.values():
        life.background(Discovery(leaf, router.clock).run)
    life.background(Prober(router, section.probe_interval_ms).run)
    pace = Pace(router.loop, router.report_local, section.probe_interval_ms / 1e3) if local else None
    if pace is not None:
        router.changed = pace.changed
    life.background(router.keep_time)
    try:
        await life.run(lambda: _announce_all(announce, opened))
    finally:
        if pace is not None:
            pace.stop()
        router.close()
        for log in logs:
            log.close()


async def _leaf(settings: LeafFile, announce: Announce, where: str) -> None:
    section = settings.leaf
    logs: list[EventLog] = []
    tier = _tier(settings.tier(), _boot(), section.event_log, logs)
    router = _router(tier, {}, section)
    life = _lifecycle(section, router)
    _background_logs(life, logs)
    half_close = _half_close(section)
    peers = PeerListener(router, settings.http, half_close=half_close)
    publisher = StatePublisher(router)
    peers.add(b"/dlb/v1/state", publisher.serve)
    peers.add(INSPECT_PATH.encode(), _inspector(router))
    opened = []
    if section.listen:
        clients = Listener(router, settings.http, half_close=half_close)
        opened.append(("listening", _open(life, f"{where}.listen", section.listen, clients)))
    opened.append(("peers", _open(life, f"{where}.peer_listen", section.peer_listen, peers)))
    opened += _open_admin(life, where, admin_address(section, "leaf"), section, router)
    _keep_books(life, settings.access_log, router)
    life.background(Discovery(router.tier, router.clock).run)
    life.background(router.keep_time)
    life.on_drain(publisher.stop)
    try:
        await life.run(lambda: _announce_all(announce, opened))
    finally:
        router.close()
        for log in logs:
            log.close()


def _tier(settings: TierSettings, boot: str, event_log: str, logs: list[EventLog]) -> Tier:
    """A tier, recorded where an event log was asked for."""
    if not event_log:
        return Tier(settings, boot)
    logs.append(EventLog(Path(event_log), settings, boot))
    return RecordedTier(settings, boot, logs[-1].note)


def _router(tier: Tier, local: dict[str, Tier], section: RouterSection) -> Router:
    return Router(
        tier,
        local,
        asyncio.get_running_loop(),
        token=read_token(section),
        accept_priority=section.accept_priority,
        upstream_idle_s=section.upstream_idle_s or NEVER,
    )


def _background_logs(life: Lifecycle, logs: list[EventLog]) -> None:
    for log in logs:
        life.background(log.run)


def _boot() -> str:
    """Identifies this run of the process to its peers and begins the ids of its requests."""
    return secrets.token_hex(6)


def _lifecycle(section: RouterSection, router: Router) -> Lifecycle:
    return Lifecycle(readiness_grace_s=section.readiness_grace_s, drain_s=section.drain_s, unready=router.unready)


def _half_close(section: RouterSection) -> bool:
    return section.half_close == "allow"


def _open(life: Lifecycle, where: str, address: str, listener: Listener) -> str:
    """Have the listener served at an address; its URL. where: the key that names the address."""
    sock = bind(where, address)
    life.add(hosted(no_app, protocol=listener.protocol), sock)
    return url_of(sock)


def _open_admin(
    life: Lifecycle, where: str, address: str, section: RouterSection, router: Router
) -> list[tuple[str, str]]:
    """Serve operators, and those who only scrape; what of it is to be announced."""
    life.add(hosted(Admin(router).app()), bind(f"{where}.admin", address))
    if not section.metrics_listen:
        return []
    sock = bind(f"{where}.metrics_listen", section.metrics_listen)
    life.add(hosted(Metrics(router).app()), sock)
    return [("metrics", f"{url_of(sock)}/metrics")]


def _keep_books(life: Lifecycle, section: AccessLogSection, router: Router) -> None:
    """What watches over requests beside their way: the audit, the loop's lag, the access log."""
    life.background(router.audit.run)
    life.background(router.lag.run)
    life.on_cut(router.ledger.drain_is_over)
    if not section.path:
        return
    tier = router.tier
    source, root = (tier.settings.cell, tier.boot) if tier.role == "root" else ("", "")
    log = router.ledger.access_log = AccessLog(section.path, source=source, root=root)
    life.background(log.run)
    life.on_hangup(log.reopen)


def _inspector(router: Router) -> Serve:
    def serve(downstream: Downstream, request: Request) -> None:
        downstream.reply(request, 200, msgspec.json.encode(leaf_view(router)))

    return serve


def _announce_all(announce: Announce, opened: list[tuple[str, str]]) -> None:
    for name, url in opened:
        announce(name, url)


def _configure_logging() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # httpx logs every poll.
    for name in ("httpx", "httpcore", "uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
