"""The engine as a pure model: continuous batching, chunked prefill, a KV budget and a prefix cache.

It has no clock: a driver asks for the length of the next step, lets that time pass (real or virtual)
and reports the step's end. All decoding sequences get one token a step, so that a step costs what
changes in it, not what runs in it: who ends when is known when decoding starts.

Two simplifications against vLLM. A sequence is admitted once blocks for its prompt and its whole output
are there (an output's length is known here beforehand), so nothing is ever preempted. And a prompt's
blocks can be shared from the end of its prefill on, not from each chunk on; outputs are not cached.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbctl.engine.prefix_cache import BlockPool, Lease

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from dlbctl.engine.profile import Profile


class State(enum.Enum):
    """Where a sequence is on its way through the engine."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the engine. Times are the driver's, in seconds; NaN until they have come."""

    prompt_tokens: int
    output_tokens: int
    block_hashes: Items[int]
    arrived_s: float
    state: State = State.WAITING
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    first_step: int = 0
    first_token_s: float = float("nan")
    finished_s: float = float("nan")
    lease: Lease | None = None

    @property
    def last_step(self) -> int:
        """The step that makes the last token; known once decoding has begun."""
        return self.first_step + self.output_tokens - 1


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did beyond one more token for each sequence that was decoding before it."""

    started: list[Sequence]
    """Prefill ended and the first token is there; with one token of output also in `finished`."""
    finished: list[Sequence]


class EngineModel:
    """One inference engine. `slowdown` (a fault) multiplies step times and may change at any time."""

    def __init__(self, profile: Profile, *, time_factor: float = 1.0, queue_limit: int = 1024) -> None:
        self.profile = profile
        self.slowdown = 1.0
        self.steps = 0
        self.decoding = 0
        self.pool = BlockPool(profile.kv_blocks)
        self.prompt_tokens_total = 0
        self.output_tokens_total = 0
        self.cache_queries_total = 0
        self.cache_hits_total = 0
        self._time_factor = time_factor
        self._queue_limit = queue_limit
        self._context_tokens = 0
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._prefilling: OrderedDict[Sequence, None] = OrderedDict()
        self._chunks: list[tuple[Sequence, int]] = []
        self._ending: dict[int, list[Sequence]] = {}
        self._in_step = False
        self._blocked_at = -1

    def __repr__(self) -> str:
        load = f"{self.running} running, {self.waiting} waiting"
        return f"<EngineModel {self.profile.name}: {load}, {self.pool!r}>"

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._prefilling) + self.decoding

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def emitted(self, sequence: Sequence) -> int:
        """Output tokens a decoding sequence has by now."""
        return self.steps - sequence.first_step + 1

    def submit(
        self, now_s: float, prompt_tokens: int, output_tokens: int, block_hashes: Items[int] = ()
    ) -> Sequence | None:
        """Queue a request; None when the queue is full.

        block_hashes: one chained hash for each full block of the prompt, or fewer where the rest is not
        to be shared. Both lengths are at least 1, together at most `max_model_tokens` (the caller checks).
        """
        assert prompt_tokens >= 1
        assert output_tokens >= 1
        assert prompt_tokens + output_tokens <= self.profile.max_model_tokens
        assert len(block_hashes) <= prompt_tokens // self.profile.block_tokens
        if self.waiting - self._places() >= self._queue_limit:
            return None
        sequence = Sequence(prompt_tokens, output_tokens, block_hashes, now_s)
        self._waiting[sequence] = None
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Drop a request and everything it holds, at once and in any state; an ended one is left alone."""
        match sequence.state:
            case State.WAITING:
                del self._waiting[sequence]
                self._blocked_at = -1
            case State.PREFILLING:
                del self._prefilling[sequence]
            case State.DECODING:
                self._forget_ending(sequence)
                self._leave_batch(sequence, self.emitted(sequence))
            case State.FINISHED | State.CANCELLED:
                return
        self._release(sequence)
        sequence.state = State.CANCELLED

    def begin_step(self) -> float | None:
        """Fill the batch and say how many seconds the step takes; None when there is nothing to do."""
        assert not self._in_step
        self._admit()
        prefill_tokens = self._plan_prefill()
        if not prefill_tokens and not self.decoding:
            return None
        self._in_step = True
        profile = self.profile
        work_s = (
            profile.step_base_s
            + profile.prefill_token_s * prefill_tokens
            + profile.decode_seq_s * self.decoding
            + profile.context_token_s * self._context_tokens
        )
        return work_s * self.slowdown / self._time_factor

    def finish_step(self, now_s: float) -> StepResult:
        """The step that `begin_step` planned has ended, at `now_s`."""
        assert self._in_step
        self._in_step = False
        self.steps += 1
        self._context_tokens += self.decoding
        self.output_tokens_total += self.decoding
        started = [sequence for sequence, tokens in self._chunks if self._prefilled(sequence, tokens, now_s)]
        finished = self._ending.pop(self.steps, [])
        for sequence in finished:
            self._finish(sequence, now_s)
        return StepResult(started, finished)

    def _places(self) -> int:
        """How many of the queue the next step takes, as far as is known; its limit is for the rest."""
        return 0 if self._blocked_at == self.pool.version else self.profile.max_num_seqs - self.running

    def _admit(self) -> None:
        """First come, first served; the head of the queue waits for memory and all others behind it."""
        while self._waiting and self.running < self.profile.max_num_seqs:
            sequence = next(iter(self._waiting))
            if self._blocked_at == self.pool.version or not self._allocate(sequence):
                self._blocked_at = self.pool.version
                return
            del self._waiting[sequence]
            self._prefilling[sequence] = None
            sequence.state = State.PREFILLING

    def _allocate(self, sequence: Sequence) -> bool:
        block_tokens = self.profile.block_tokens
        # The last prompt token is always computed: its result is the first token of the answer.
        reusable = (sequence.prompt_tokens - 1) // block_tokens
        shared = self.pool.matched(sequence.block_hashes, reusable)
        total = self.profile.blocks_for(sequence.prompt_tokens + sequence.output_tokens)
        sequence.lease = self.pool.lease(sequence.block_hashes, shared, total)
        if sequence.lease is None:
            return False
        sequence.cached_tokens = sequence.prefilled_tokens = shared * block_tokens
        self.cache_queries_total += sequence.prompt_tokens
        self.cache_hits_total += sequence.cached_tokens
        return True

    def _plan_prefill(self) -> int:
        """Deal what decoding leaves of the token budget to prompts, oldest first; returns the tokens."""
        budget = left = self.profile.max_batch_tokens - self.decoding
        self._chunks.clear()
        for sequence in self._prefilling:
            tokens = min(left, sequence.prompt_tokens - sequence.prefilled_tokens)
            self._chunks.append((sequence, tokens))
            left -= tokens
            if not left:
                break
        return budget - left

    def _prefilled(self, sequence: Sequence, tokens: int, now_s: float) -> bool:
        """A chunk is computed; true when it was the prompt's last and the first token is out."""
        if sequence.state is not State.PREFILLING:
            return False
        sequence.prefilled_tokens += tokens
        if sequence.prefilled_tokens < sequence.prompt_tokens:
            return False
        self._start_decoding(sequence, now_s)
        return True

    def _start_decoding(self, sequence: Sequence, now_s: float) -> None:
        assert sequence.lease is not None
        self.pool.publish(sequence.lease, sequence.block_hashes)
        del self._prefilling[sequence]
        sequence.state = State.DECODING
        sequence.first_step = self.steps
        sequence.first_token_s = now_s
        self.decoding += 1
        self._context_tokens += sequence.prompt_tokens + 1
        self.prompt_tokens_total += sequence.prompt_tokens
        self.output_tokens_total += 1
        self._ending.setdefault(sequence.last_step, []).append(sequence)

    def _finish(self, sequence: Sequence, now_s: float) -> None:
        self._leave_batch(sequence, sequence.output_tokens)
        self._release(sequence)
        sequence.state = State.FINISHED
        sequence.finished_s = now_s

    def _leave_batch(self, sequence: Sequence, emitted: int) -> None:
        self.decoding -= 1
        self._context_tokens -= sequence.prompt_tokens + emitted

    def _release(self, sequence: Sequence) -> None:
        if sequence.lease is not None:
            self.pool.release(sequence.lease)
            sequence.lease = None

    def _forget_ending(self, sequence: Sequence) -> None:
        ending = self._ending[sequence.last_step]
        ending.remove(sequence)
        if not ending:
            del self._ending[sequence.last_step]
