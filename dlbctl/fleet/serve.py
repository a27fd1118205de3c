"""One fleet from start to end: signals, the lifeline, reports of processes that died, and the time it may run."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from dlbctl.core.errors import DlbctlError
from dlbctl.fleet.child import Child, describe
from dlbctl.fleet.lifeline import Lifeline
from dlbctl.fleet.run_folder import FleetRecord, RunFolder
from dlbctl.fleet.settings import FleetSettings
from dlbctl.fleet.supervisor import START_TIMEOUT_S, Programs, Supervisor

T = TypeVar("T")
Report = Callable[[str], None]


class _Stopping:
    """What the user wants: first signal, end; second one, end at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurry = asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self._signalled)

    def _signalled(self) -> None:
        (self.hurry if self.asked.is_set() else self.asked).set()

    async def or_done(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what `work` returns, None when the user wants to stop first."""
        working = asyncio.create_task(work)
        asked = asyncio.create_task(self.asked.wait())
        await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return None


async def serve_fleet(
    settings: FleetSettings,
    directory: Path,
    *,
    on_ready: Callable[[FleetRecord], None],
    report: Report,
    for_s: float | None = None,
    programs: Programs | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> None:
    """Run a fleet in `directory` until a signal or for `for_s` seconds; no process of it is left.

    A process that dies later is reported and the rest goes on: killing one is how routing around it is tried out.
    DlbctlError: a process did not come up, or none is left.
    """
    stopping = _Stopping()
    folder = RunFolder(directory)
    try:
        _check_ports(settings)
        with Lifeline(folder.sockets / "lifeline") as lifeline:
            supervisor = Supervisor(
                settings,
                folder,
                environment=lifeline.environment(),
                programs=programs or Programs(),
                start_timeout_s=start_timeout_s,
            )
            try:
                if record := await stopping.or_done(supervisor.start()):
                    on_ready(record)
                    await stopping.or_done(_watch(supervisor.children, report, for_s))
            finally:
                await supervisor.end(stopping.hurry)
    finally:
        folder.release()


async def _watch(children: list[Child], report: Report, for_s: float | None) -> None:
    """Report every process that ends; return when the time is over, raise when none is left."""
    running = {asyncio.create_task(child.wait()): child for child in children}
    try:
        async with asyncio.timeout(for_s):
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    child = running.pop(task)
                    report(
                        f"{child.name} (pid {child.pid}) ended with {describe(task.result())}; the rest goes on."
                        f"\n  {child.log_tail()}"
                    )
    except TimeoutError:
        return
    finally:
        for task in running:
            task.cancel()
    raise DlbctlError("every process of the fleet has ended", hint="Their logs say why.")


def _check_ports(settings: FleetSettings) -> None:
    """Fail before anything starts when a root's port is taken; the root's own bind is what counts."""
    for region in (region for region in settings.region if region.port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", region.port))
            except OSError as error:
                raise DlbctlError(
                    f"port {region.port}, which the root of {region.name} should use: {error.strerror}",
                    hint="End what uses it, or change `port` of that [[region]].",
                ) from error
