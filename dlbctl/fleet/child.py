"""One process of a fleet: started with a log and the lifeline, heard until it is ready, ended with its group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dlbctl.core.errors import DlbctlError

_TAIL_LINES = 12
_TAIL_BYTES = 8192


class StartError(DlbctlError):
    """A process of the fleet that did not come up; the hint ends with the last lines of its log."""


class Child:
    """A process and its log. Its stdout is read for what it announces; all it says ends up in the log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        self._process = process
        self._copying: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Child({self.name!r}, pid {self.pid}, exit code {self.exit_code})"

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Child:
        """Start a process in a session of its own, so that Ctrl-C reaches the supervisor alone."""
        with _fresh(log) as sink:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=sink,
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def announced(self, enough: Callable[[list[str]], bool], timeout_s: float) -> list[str]:
        """Return the lines it prints until they are enough; StartError when it ends or stays silent instead."""
        try:
            async with asyncio.timeout(timeout_s):
                lines = await self._lines_until(enough)
        except TimeoutError:
            raise self.failure(f"was not ready within {timeout_s:g} s") from None
        if lines is None:
            raise self.failure(f"ended with {describe(await self.wait())} before it was ready")
        self._copying = asyncio.create_task(self._copy_the_rest())
        return lines

    async def wait(self) -> int:
        """Wait for its end; return the exit code, negative for a signal."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End it and what it started, at once."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def failure(self, what: str) -> StartError:
        """Return an error about this process that quotes its log."""
        return StartError(f"{self.name} (pid {self.pid}) {what}", hint=self.log_tail())

    def log_tail(self) -> str:
        """Return the last lines of its log, indented, below the log's path."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        if not lines:
            return f"Its log, {self.log}, is empty."
        return "\n    ".join([f"Its log, {self.log}, ends:", *lines])

    async def _lines_until(self, enough: Callable[[list[str]], bool]) -> list[str] | None:
        assert self._process.stdout is not None
        lines: list[str] = []
        with self.log.open("ab") as log:
            while not enough(lines):
                line = await self._process.stdout.readline()
                if not line:
                    return None
                log.write(line)
                log.flush()
                lines.append(line.decode(errors="replace").strip())
        return lines

    async def _copy_the_rest(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("ab", buffering=0) as log:
            while chunk := await self._process.stdout.read(65536):
                log.write(chunk)


def _fresh(log: Path) -> BinaryIO:
    """Open an empty log to append to, as the child and its reader here both do."""
    log.write_bytes(b"")
    return log.open("ab")


def describe(exit_code: int) -> str:
    """Return an exit code in words: `exit code 1`, `signal SIGKILL`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"
