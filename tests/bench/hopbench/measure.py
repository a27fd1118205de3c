"""One round of measuring one system."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from hopbench import traffic
from hopbench.load import WrongAnswerError, drive
from hopbench.processes import Group, StartError
from hopbench.traffic import Kind

CONNECTIONS = 32
_READY_S = 60.0
_IDLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many requests of each sort a round sends."""

    loaded: int = 6000  # JSON, over CONNECTIONS
    alone: int = 1000  # JSON, over one connection
    streams: int = 4 * CONNECTIONS  # SSE, paced and then fast


@dataclass(frozen=True, slots=True)
class Figures:
    """What one system showed in one round. CPU is that of its processes; None for no system at all."""

    p50_ms: float  # JSON, one connection
    request_us: float | None  # CPU per JSON request over CONNECTIONS
    chunk_us: float | None  # CPU per SSE event relayed every PACE_S: what a stream costs above a JSON request
    fast_chunk_us: float | None  # the same for streams without pauses
    idle_percent: float | None  # of a core, without any request
    rss_mb: float | None


@dataclass(frozen=True, slots=True)
class Running:
    """A started system."""

    name: str
    port: int
    group: Group

    def wait_until_ready(self) -> None:
        """Ask until a whole right answer comes, then warm both kinds of path."""
        deadline_s = time.monotonic() + _READY_S
        while not self._answers():
            if time.monotonic() > deadline_s or self.group.ended():
                logs = "\n".join(member.tail() for member in self.group.members)
                raise StartError(f"{self.name} does not answer:\n{logs}")
            time.sleep(0.1)
        drive(self.port, Kind.JSON, CONNECTIONS, 20 * CONNECTIONS)
        drive(self.port, Kind.FAST, CONNECTIONS, CONNECTIONS)

    def _answers(self) -> bool:
        try:
            drive(self.port, Kind.JSON, 1, 1)
        except (OSError, WrongAnswerError):
            return False
        return True

    def figures(self, amounts: Amounts) -> Figures:
        """Measure everything once. Raises WrongAnswerError with the system's name on any wrong answer."""
        try:
            latencies_s = drive(self.port, Kind.JSON, 1, amounts.alone)
            request_us = self._cpu_us(Kind.JSON, amounts.loaded)
            chunk_us = (self._cpu_us(Kind.PACED, amounts.streams) - request_us) / traffic.CHUNKS
            fast_chunk_us = (self._cpu_us(Kind.FAST, amounts.streams) - request_us) / traffic.CHUNKS
        except WrongAnswerError as error:
            raise WrongAnswerError(f"{self.name}: {error}") from error
        p50_ms = statistics.median(latencies_s) * 1e3
        if not self.group.members:
            return Figures(p50_ms, None, None, None, None, None)
        return Figures(p50_ms, request_us, chunk_us, fast_chunk_us, self._idle_percent(), self.group.rss_mb())

    def _cpu_us(self, kind: Kind, requests: int) -> float:
        """CPU of the system per request of this kind, microseconds."""
        before_s = self.group.cpu_s()
        drive(self.port, kind, CONNECTIONS, requests)
        return (self.group.cpu_s() - before_s) / requests * 1e6

    def _idle_percent(self) -> float:
        before_s = self.group.cpu_s()
        time.sleep(_IDLE_S)
        return (self.group.cpu_s() - before_s) / _IDLE_S * 100
