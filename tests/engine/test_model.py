from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.engine.model import EngineModel, Sequence, State
from dlbctl.engine.profile import Profile

TINY = Profile(
    name="tiny",
    max_num_seqs=3,
    max_batch_tokens=8,
    max_model_tokens=40,
    block_tokens=4,
    kv_blocks=14,
    step_base_s=1.0,
    prefill_token_s=0.1,
    decode_seq_s=0.01,
    context_token_s=0.001,
    mean_output_tokens=4.0,
)


def model(*, queue_limit: int = 100, time_factor: float = 1.0, **changes: Any) -> EngineModel:
    profile = msgspec.structs.replace(TINY, **changes)
    return EngineModel(profile, queue_limit=queue_limit, time_factor=time_factor)


def run(engine: EngineModel, now_s: float = 0.0) -> float:
    """Steps until nothing is left; returns when that is."""
    while (duration_s := engine.begin_step()) is not None:
        now_s += duration_s
        engine.finish_step(now_s)
    return now_s


def submit(engine: EngineModel, prompt: int, output: int, hashes: tuple[int, ...] = ()) -> Sequence:
    sequence = engine.submit(0.0, prompt, output, hashes)
    assert sequence is not None
    return sequence


class TokenCounter:
    """Counts tokens from outside: one a step for whoever decodes."""

    def __init__(self, engine: EngineModel) -> None:
        self.engine = engine
        self.sequences: list[Sequence] = []
        self.tokens: Counter[int] = Counter()
        self.now_s = 0.0

    def step(self) -> bool:
        engine = self.engine
        duration_s = engine.begin_step()
        if duration_s is None:
            return False
        assert duration_s >= engine.profile.step_base_s
        self.now_s += duration_s
        before = [s for s in self.sequences if s.state is State.DECODING]
        result = engine.finish_step(self.now_s)
        for sequence in [*before, *result.started]:
            self.tokens[id(sequence)] += 1
        for sequence in result.finished:
            assert sequence.state is State.FINISHED
            assert sequence.finished_s == self.now_s
        return True

    def check(self) -> None:
        engine = self.engine
        assert engine.running <= engine.profile.max_num_seqs
        assert engine.pool.occupied <= engine.pool.blocks
        states = Counter(sequence.state for sequence in self.sequences)
        assert engine.waiting == states[State.WAITING]
        assert engine.running == states[State.PREFILLING] + states[State.DECODING]
        for sequence in self.sequences:
            if sequence.state is State.DECODING:
                assert engine.emitted(sequence) == self.tokens[id(sequence)]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 24), st.integers(1, 16), st.integers(0, 2)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.booleans().map(int), st.just(0)),
    ),
    max_size=50,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(OPERATIONS)
def test_whatever_happens_limits_hold_and_nothing_leaks(operations: list[tuple[str, int, int, int]]) -> None:
    engine = model(queue_limit=5)
    counter = TokenCounter(engine)
    for kind, first, second, family in operations:
        if kind == "submit":
            hashes = [1000 * family + block for block in range(first // 4)]
            was_waiting = engine.waiting
            sequence = engine.submit(counter.now_s, first, second, hashes)
            if sequence is not None:
                counter.sequences.append(sequence)
            else:
                assert was_waiting >= 5
            assert engine.waiting <= 5 + engine.profile.max_num_seqs - engine.running
        elif kind == "step":
            for _ in range(first):
                counter.step()
        elif counter.sequences:
            victim = counter.sequences[first % len(counter.sequences)]
            if second and engine.begin_step() is not None:  # in the middle of a step, too
                engine.cancel(victim)
                before = [s for s in counter.sequences if s.state is State.DECODING]
                counter.now_s += 1.0
                for other in [*before, *engine.finish_step(counter.now_s).started]:
                    counter.tokens[id(other)] += 1
            engine.cancel(victim)
        counter.check()
    while counter.step():
        counter.check()
    for sequence in counter.sequences:
        assert sequence.state in (State.FINISHED, State.CANCELLED)
        if sequence.state is State.FINISHED:
            assert counter.tokens[id(sequence)] == sequence.output_tokens
            assert sequence.arrived_s < sequence.first_token_s <= sequence.finished_s
    assert (engine.running, engine.waiting, engine.pool.leased) == (0, 0, 0)
    assert (engine._context_tokens, engine._ending) == (0, {})
    assert engine.output_tokens_total == counter.tokens.total()


def test_a_lone_request_takes_the_sum_of_its_steps() -> None:
    engine = model()
    sequence = submit(engine, 20, 5)
    run(engine)
    prefill_s = 3 * 1.0 + 20 * 0.1  # chunks of 8, 8 and 4 tokens
    contexts = (21, 22, 23, 24)  # at the steps of tokens 2 to 5
    decode_s = sum(1.0 + 0.01 + 0.001 * context for context in contexts)
    assert sequence.first_token_s == pytest.approx(prefill_s)
    assert sequence.finished_s == pytest.approx(prefill_s + decode_s)


def test_decoding_goes_first_and_prefill_gets_the_rest_of_the_budget() -> None:
    engine = model()
    submit(engine, 8, 8)
    engine.begin_step()
    engine.finish_step(0.0)
    submit(engine, 20, 1)
    assert engine.begin_step() == pytest.approx(1.0 + 7 * 0.1 + 0.01 + 9 * 0.001)


def test_requests_are_served_in_order_of_arrival() -> None:
    engine = model(max_num_seqs=1)
    sequences = [submit(engine, 4, 2) for _ in range(5)]
    run(engine)
    ends = [sequence.finished_s for sequence in sequences]
    assert ends == sorted(ends)
    assert len(set(ends)) == 5


def test_the_head_of_the_queue_waits_for_memory_and_nobody_passes_it() -> None:
    engine = model()
    submit(engine, 20, 16)  # 9 of 14 blocks
    big = submit(engine, 20, 4)  # 6 more are not there
    small = submit(engine, 1, 1)
    engine.begin_step()
    assert (engine.running, engine.waiting) == (1, 2)
    engine.finish_step(1.0)
    run(engine, 1.0)
    assert big.first_token_s <= small.first_token_s


def test_a_cancelled_head_lets_those_behind_it_pass_at_once() -> None:
    engine = model()
    submit(engine, 20, 16)
    big = submit(engine, 20, 4)
    small = submit(engine, 1, 1)
    engine.begin_step()
    engine.finish_step(1.0)
    engine.cancel(big)
    engine.begin_step()
    assert small.state is State.PREFILLING


def test_a_full_queue_refuses_and_a_queue_of_none_still_feeds_the_batch() -> None:
    engine = model(queue_limit=0)
    submitted = [engine.submit(0.0, 1, 2) for _ in range(4)]
    assert [sequence is None for sequence in submitted] == [False, False, False, True]


def test_the_queue_limit_counts_what_the_next_step_cannot_take() -> None:
    engine = model(queue_limit=2)
    submitted = [engine.submit(0.0, 20, 16) for _ in range(6)]  # memory for one, as the first step finds out
    assert [sequence is None for sequence in submitted] == [False] * 5 + [True]
    engine.begin_step()
    assert (engine.running, engine.waiting) == (1, 4)
    assert engine.submit(0.0, 1, 1) is None


def test_a_prompt_seen_before_costs_only_its_last_block() -> None:
    engine = model()
    submit(engine, 16, 1, (1, 2, 3, 4))
    run(engine)
    again = submit(engine, 16, 1, (1, 2, 3, 4))
    duration_s = engine.begin_step()
    assert again.cached_tokens == 12
    assert duration_s == pytest.approx(1.0 + 4 * 0.1)
    assert (engine.cache_queries_total, engine.cache_hits_total) == (32, 12)


def test_a_prompt_still_in_prefill_is_not_shared() -> None:
    engine = model()
    submit(engine, 16, 1, (1, 2, 3, 4))
    twin = submit(engine, 16, 1, (1, 2, 3, 4))
    run(engine)
    assert twin.cached_tokens == 0


def test_time_factor_and_slowdown_scale_steps() -> None:
    engine = model(time_factor=10.0)
    submit(engine, 8, 2)
    assert engine.begin_step() == pytest.approx(0.18)
    engine.finish_step(0.18)
    engine.slowdown = 3.0
    assert engine.begin_step() == pytest.approx(0.3 * (1.0 + 0.01 + 0.009))


def test_an_ended_request_can_be_cancelled_without_effect() -> None:
    engine = model()
    sequence = submit(engine, 4, 1)
    run(engine)
    engine.cancel(sequence)
    assert sequence.state is State.FINISHED


def test_a_model_shows_its_load() -> None:
    engine = model(max_num_seqs=1)
    submit(engine, 4, 4)
    submit(engine, 4, 4)
    engine.begin_step()
    assert repr(engine) == "<EngineModel tiny: 1 running, 1 waiting, <BlockPool 2/14 leased, 0 idle>>"
