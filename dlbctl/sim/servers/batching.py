"""The embedded engine's own model: continuous batching, chunked prefill, KV memory and prefix cache."""

from __future__ import annotations

from dlbctl.engine.model import EngineModel, Sequence
from dlbctl.engine.profile import Profile
from dlbctl.sim.agenda import Agenda
from dlbctl.sim.servers.server import Job, Server


class Batching(Server):
    """Drives the model: one event a step, however many sequences are in it."""

    def __init__(self, agenda: Agenda, *, profile: Profile, time_factor: float, queue_limit: int) -> None:
        super().__init__(agenda)
        self._model = EngineModel(profile, time_factor=time_factor, queue_limit=queue_limit)
        self._jobs: dict[Sequence, Job] = {}
        self._stepping = False

    def submit(self, job: Job) -> bool:
        """Queue it; the engine's own queue has a limit, and so has the length of a request."""
        model, now_s = self._model, self.agenda.now_s
        if job.prompt_tokens + job.output_tokens > model.profile.max_model_tokens:
            job.too_large()
            return True
        sequence = model.submit(now_s, job.prompt_tokens, job.output_tokens, job.block_hashes)
        if sequence is None:
            return False
        self._jobs[sequence] = job
        if not self._stepping:
            self._begin()
        return True

    def abandon(self, job: Job) -> None:
        """As an engine does whose client has left: it is dropped, with its memory."""
        super().abandon(job)
        for sequence, known in self._jobs.items():
            if known is job:
                del self._jobs[sequence]
                self._model.cancel(sequence)
                return

    def _begin(self) -> None:
        self._model.slowdown = self.slowness
        duration_s = self._model.begin_step()
        self._stepping = duration_s is not None
        if duration_s is not None:
            self.agenda.at(self.agenda.now_s + duration_s, self._end)

    def _end(self) -> None:
        result = self._model.finish_step(self.agenda.now_s)
        for sequence in result.started:
            job = self._jobs[sequence]
            job.cached_tokens = sequence.cached_tokens
            job.begin()
        for sequence in result.finished:
            self._jobs.pop(sequence).finish()
        self._begin()
