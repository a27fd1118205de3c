"""A whole cell whose rate is its latency curve's: k mu(N/k), as DLB's fluid model has it, with single requests.

Whoever leaves is drawn from all that are there (processor sharing), so requests that are alike take equally long on
average. In the limit of many servers this is the model that equilibrium programs solve.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dlbctl.core.curve import Curve
from dlbctl.sim.agenda import Agenda
from dlbctl.sim.servers.server import Job, Server


class Rate(Server):
    """N requests leave at rate k mu(N/k) [requests/s], exponentially distributed."""

    def __init__(self, agenda: Agenda, rng: Random, *, curve: Curve, k: float) -> None:
        super().__init__(agenda)
        self._rng = rng
        self._curve = curve
        self._k = k
        self._jobs: list[Job] = []
        self._drawn = 0  # departures drawn so far: each arrival and departure makes the last one void

    def submit(self, job: Job) -> bool:
        """It shares the rate from now on."""
        self._jobs.append(job)
        self.agenda.at(self.agenda.now_s, job.begin)
        self._draw()
        return True

    def abandon(self, job: Job) -> None:
        """It leaves at once."""
        super().abandon(job)
        if job in self._jobs:
            self._jobs.remove(job)
            self._draw()

    def _draw(self) -> None:
        """Draw when the next one leaves: exponential times are as good as new after any time."""
        self._drawn += 1
        count = len(self._jobs)
        if count:
            rate_rps = self._k * self._curve.rate_per_server(count / self._k) / self.slowness
            self.agenda.at(self.agenda.now_s + self._rng.expovariate(rate_rps), self._departure(self._drawn))

    def _departure(self, drawn: int) -> Callable[[], None]:
        def leave() -> None:
            if drawn == self._drawn:
                self._leave()

        return leave

    def _leave(self) -> None:
        jobs = self._jobs
        index = int(self._rng.random() * len(jobs))
        job = jobs[index]
        jobs[index] = jobs[-1]
        jobs.pop()
        self._draw()
        job.finish()
