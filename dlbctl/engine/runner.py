"""The real-time driver of an engine model: one timer for the step in progress, whatever runs in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dlbctl.engine.model import EngineModel, Sequence, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbctl.engine.prompt import Prompt

_GIVE_UP_S = 0.25
"""A loop that is later than this does not catch up: the lost time is gone, and the lag meter tells."""


class Timer(Protocol):
    """What can still be called off."""

    def cancel(self) -> None:
        """Call it off."""


class Clock(Protocol):
    """The two things of an event loop that a runner needs."""

    def time(self) -> float:
        """Seconds since some beginning."""

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call back at a time, or at once if it is past."""


class Reader(Protocol):
    """Who gets a sequence's tokens. `interval`: tokens between two calls of `on_tokens`, 0 for none."""

    interval: int

    def on_tokens(self, count: int) -> None:
        """The answer has `count` tokens by now."""

    def on_finished(self) -> None:
        """The answer is complete."""


class Runner:
    """Runs one engine model by a clock. Steps follow each other without drift."""

    def __init__(self, model: EngineModel, clock: Clock, on_ended: Callable[[Sequence], None]) -> None:
        self.model = model
        self._clock = clock
        self._on_ended = on_ended
        self._readers: dict[Sequence, Reader] = {}
        self._due: dict[int, list[Sequence]] = {}
        self._step_ends_s = 0.0
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<Runner {self.model!r}>"

    def submit(self, prompt: Prompt, output_tokens: int, reader_of: Callable[[Sequence], Reader]) -> Sequence | None:
        """Queue a request and make it a reader; None, and no reader, when the queue is full."""
        now_s = self._clock.time()
        sequence = self.model.submit(now_s, prompt.tokens, output_tokens, prompt.block_hashes)
        if sequence is not None:
            self._readers[sequence] = reader_of(sequence)
            if self._timer is None:
                self._begin_step(now_s)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Nobody waits for this answer any more."""
        if self._readers.pop(sequence, None) is not None:
            self.model.cancel(sequence)
            self._on_ended(sequence)

    def stop(self) -> None:
        """Time stands still for this engine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_step(self, now_s: float) -> None:
        duration_s = self.model.begin_step()
        if duration_s is None:
            self._timer = None
            return
        self._step_ends_s = now_s + duration_s
        self._timer = self._clock.call_at(self._step_ends_s, self._end_step)

    def _end_step(self) -> None:
        now_s = self._clock.time()
        if now_s - self._step_ends_s < _GIVE_UP_S:
            now_s = self._step_ends_s
        result = self.model.finish_step(now_s)
        self._begin_step(now_s)
        self._deliver(result.started, result.finished)

    def _deliver(self, started: list[Sequence], finished: list[Sequence]) -> None:
        step = self.model.steps
        for sequence in started:
            self._give(sequence, step)
        for sequence in self._due.pop(step, ()):
            self._give(sequence, step)
        for sequence in finished:
            self._readers.pop(sequence).on_finished()
            self._on_ended(sequence)

    def _give(self, sequence: Sequence, step: int) -> None:
        """Hand over what there is and note when more is due; the end is not noted, it comes anyway."""
        if sequence.state is not State.DECODING:
            return
        reader = self._readers[sequence]
        if not reader.interval:
            return
        following = step + reader.interval
        if following < sequence.last_step:
            self._due.setdefault(following, []).append(sequence)
        reader.on_tokens(step - sequence.first_step + 1)
