"""What a modelled server and the requests that it works on are to each other."""

from __future__ import annotations

from collections.abc import Sequence

from dlbctl.sim.agenda import Agenda


class Job:
    """One request at one server. `abandoned`: nobody waits for it any more."""

    def __init__(self, prompt_tokens: int, output_tokens: int, block_hashes: Sequence[int]) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.block_hashes = block_hashes
        self.cached_tokens = 0
        self.abandoned = False

    def begin(self) -> None:
        """The first token is there."""
        raise NotImplementedError

    def finish(self) -> None:
        """The last token is there."""
        raise NotImplementedError

    def too_large(self) -> None:
        """The server that it was submitted to can never do it: it answers so at once."""
        raise NotImplementedError


class Server:
    """Takes jobs, and has each begin and finish in its time. slowness multiplies the times of work that starts."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.slowness = 1.0

    def submit(self, job: Job) -> bool:
        """Take a job; False when it is declined for want of room."""
        raise NotImplementedError

    def abandon(self, job: Job) -> None:
        """Nobody waits for the job: it begins and finishes for nobody. Work that is laid out already is still done."""
        job.abandoned = True
