"""k equal workers behind one queue: M/M/k and M/G/k with Poisson arrivals, where queueing theory has the answer."""

from __future__ import annotations

from heapq import heapreplace
from random import Random

from dlbctl.sim.agenda import Agenda
from dlbctl.sim.servers.server import Job, Server


class Multi(Server):
    """Service times of mean_s with a coefficient of variation: 1 exponential, 0 all equal, else gamma."""

    def __init__(self, agenda: Agenda, rng: Random, *, workers: int, mean_s: float, cv: float) -> None:
        super().__init__(agenda)
        self._rng = rng
        self._mean_s = mean_s
        self._shape = 1.0 / (cv * cv) if cv > 0.0 else 0.0
        self._free_s = [0.0] * workers  # a heap

    def submit(self, job: Job) -> bool:
        """First come, first served: it begins when a worker takes it."""
        agenda, free_s = self.agenda, self._free_s
        begins_s = max(agenda.now_s, free_s[0])
        ends_s = begins_s + self._service_s() * self.slowness
        heapreplace(free_s, ends_s)
        agenda.at(begins_s, job.begin)
        agenda.at(ends_s, job.finish)
        return True

    def _service_s(self) -> float:
        if self._shape == 0.0:
            return self._mean_s
        if self._shape == 1.0:
            return self._rng.expovariate(1.0) * self._mean_s
        return self._rng.gammavariate(self._shape, self._mean_s / self._shape)
