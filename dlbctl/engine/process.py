"""A process of engines: one event loop, one port for each, ended by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dlbctl.core.errors import DlbctlError
from dlbctl.engine.lag import LoopLag
from dlbctl.engine.server import EngineServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlbctl.engine.profile import Profile
    from dlbctl.engine.server import EngineOptions


@dataclass(frozen=True, slots=True)
class Summary:
    """What the engines of a process did."""

    requests: int
    finished: int
    aborted: int
    output_tokens: int
    lag_p99_s: float
    crashed: bool
    """All of them crashed, as they were told to."""


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Bind `count` sockets: `port` and the ports after it, or any free ones for port 0."""
    with contextlib.ExitStack() as undo:
        sockets = [undo.enter_context(_bind(host, port + offset if port else 0)) for offset in range(count)]
        undo.pop_all()
    return sockets


def address(sock: socket.socket) -> str:
    """The base URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    profile: Profile,
    options: EngineOptions,
    sockets: Sequence[socket.socket],
    on_ready: Callable[[], None],
) -> Summary:
    """Run one engine on each socket until SIGTERM or SIGINT, or until all have crashed."""
    loop = asyncio.get_running_loop()
    lag = LoopLag(loop)
    engines = [
        EngineServer(profile, replace(options, seed=options.seed + number), loop, lag) for number in range(len(sockets))
    ]
    for engine, sock in zip(engines, sockets, strict=True):
        await engine.listen(sock)
    # Nothing made so far is garbage: collections, which stop all engines, need not look at it.
    gc.freeze()
    on_ready()
    crashed = await _until_signal_or_crash(engines)
    lag.stop()
    for engine in engines:
        engine.stop()
    return _summary(engines, lag, crashed)


async def _until_signal_or_crash(engines: list[EngineServer]) -> bool:
    """Whether it was the crash of all engines."""
    loop = asyncio.get_running_loop()
    crash: asyncio.Future[Any] = asyncio.gather(*(engine.crashed for engine in engines))
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    stop: asyncio.Future[Any] = asyncio.ensure_future(told.wait())
    await asyncio.wait([crash, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    return crash.done()


def _summary(engines: list[EngineServer], lag: LoopLag, crashed: bool) -> Summary:
    return Summary(
        requests=sum(engine.requests for engine in engines),
        finished=sum(engine.metrics.finished for engine in engines),
        aborted=sum(engine.metrics.aborted for engine in engines),
        output_tokens=sum(engine.model.output_tokens_total for engine in engines),
        lag_p99_s=lag.p99_s(),
        crashed=crashed,
    )


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise DlbctlError(f"cannot listen on {host}: {error}", hint="give an address of this machine") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise DlbctlError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="choose another --port, or --port 0 for a free one",
        ) from error
    return sock
