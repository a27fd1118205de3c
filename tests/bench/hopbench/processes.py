"""Processes under test: started on a core of their own, their CPU time and memory read, ended."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

_START_S = 60.0
_POLL_S = 0.02


class StartError(Exception):
    """A process that ended or stayed silent instead of getting ready."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where to run: clients and upstream on one core, the systems under test on another."""

    clients: frozenset[int]
    systems: frozenset[int]

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The first and the last core that this process may use (one and the same on a single core)."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(frozenset(allowed[:1]), frozenset(allowed[-1:]))


@dataclass(slots=True)
class Launched:
    """One started process; its output goes to a log file, where its ready line is found."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, word: str) -> list[str]:
        """The words after `word` on the first line of the output that begins with it."""
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            for line in self.log.read_text(errors="replace").splitlines():
                if line.startswith(word + " "):
                    return line.split()[1:]
            time.sleep(_POLL_S)
        raise StartError(f"no line `{word} ...` from {self.process.args!r}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that is not heard."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class Group:
    """The processes that are one system, and all their descendants."""

    cores: frozenset[int]
    folder: Path
    members: list[Launched] = field(default_factory=list)

    def launch(self, command: list[str], *, name: str, env: dict[str, str] | None = None) -> Launched:
        """Start a command on the group's cores, so that it sizes its thread pools for them."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | (env or {}),
                preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
            )
        launched = Launched(process, log)
        self.members.append(launched)
        return launched

    def ended(self) -> bool:
        """Whether a process has ended by itself."""
        return any(member.process.poll() is not None for member in self.members)

    def stop(self) -> None:
        while self.members:
            self.members.pop().stop()

    def cpu_s(self) -> float:
        """CPU seconds used so far, threads that have ended included."""
        return sum(_cpu_s(pid) for pid in self._pids())

    def rss_mb(self) -> float:
        """Resident memory of all the processes."""
        return sum(_rss_mb(pid) for pid in self._pids())

    def _pids(self) -> list[int]:
        pids = [member.process.pid for member in self.members]
        for pid in pids:  # grows while it is walked: children of children are found too
            pids.extend(_children(pid))
        return pids


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _cpu_s(pid: int) -> float:
    """The process's CPU clock, in nanoseconds inside: /proc/PID/stat counts ticks of 10 ms.

    The clock's id is what clock_getcpuclockid(3) would give, which Python does not offer for a process.
    """
    return time.clock_gettime((~pid << 3) | 2)


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) * 1024 / 1e6
