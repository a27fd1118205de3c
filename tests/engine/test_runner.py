from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from dlbctl.engine.lag import LoopLag
from dlbctl.engine.model import EngineModel, Sequence
from dlbctl.engine.profile import Profile
from dlbctl.engine.prompt import Prompt
from dlbctl.engine.runner import Runner


class Notes:
    """A reader that keeps what it is told."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.counts: list[int] = []
        self.finished = asyncio.Event()

    def on_tokens(self, count: int) -> None:
        self.counts.append(count)

    def on_finished(self) -> None:
        self.finished.set()


def test_readers_hear_at_their_interval_and_the_end(profile: Profile) -> None:
    async def scenario() -> None:
        ended: list[Sequence] = []
        runner = Runner(EngineModel(profile), asyncio.get_running_loop(), ended.append)
        readers = [Notes(interval) for interval in (0, 1, 4, 20)]
        waiting = iter(readers)
        for _ in readers:
            assert runner.submit(Prompt(5, []), 10, lambda _: next(waiting)) is not None
        await asyncio.gather(*(reader.finished.wait() for reader in readers))
        assert [reader.counts for reader in readers] == [[], [*range(1, 10)], [1, 5, 9], [1]]
        assert (len(ended), runner._due, runner._readers) == (4, {}, {})

    uvloop.run(scenario())


def test_steps_take_the_models_time_without_drift(profile: Profile) -> None:
    async def scenario() -> None:
        ended: list[Sequence] = []
        runner = Runner(EngineModel(profile), asyncio.get_running_loop(), ended.append)
        reader = Notes(0)
        runner.submit(Prompt(1, []), 200, lambda _: reader)
        await reader.finished.wait()
        (sequence,) = ended
        # 200 steps of 1 ms and one prefilled token; the loop may be late, the model's time never early.
        assert 0.2 <= sequence.finished_s - sequence.arrived_s < 1.0

    uvloop.run(scenario())


class ScriptedClock:
    """Time stands where the test puts it; it is its own and only timer."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due_s = 0.0
        self.callback: Callable[[], None] = self.cancel

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> ScriptedClock:
        self.due_s, self.callback = when, callback
        return self

    def cancel(self) -> None:
        self.callback = self.cancel

    def fire(self, late_s: float) -> None:
        self.now_s = self.due_s + late_s
        self.callback()


def test_a_little_lateness_is_made_good_and_a_great_one_is_lost(profile: Profile) -> None:
    clock = ScriptedClock()
    runner = Runner(EngineModel(profile), clock, lambda _: None)
    runner.submit(Prompt(1, []), 10, lambda _: Notes(0))
    assert clock.due_s == pytest.approx(100.00101)
    clock.fire(late_s=0.2)
    assert clock.due_s == pytest.approx(100.00201)
    clock.fire(late_s=0.5)
    assert clock.due_s == pytest.approx(100.00201 + 0.5 + 0.001)
    runner.stop()
    assert clock.callback == clock.cancel


def test_a_cancelled_reader_hears_nothing_more(profile: Profile) -> None:
    async def scenario() -> None:
        ended: list[Sequence] = []
        runner = Runner(EngineModel(profile), asyncio.get_running_loop(), ended.append)
        gone, stays = Notes(1), Notes(1)
        sequence = runner.submit(Prompt(5, []), 10, lambda _: gone)
        runner.submit(Prompt(5, []), 10, lambda _: stays)
        assert sequence is not None
        runner.cancel(sequence)
        runner.cancel(sequence)
        await stays.finished.wait()
        assert (gone.counts, gone.finished.is_set()) == ([], False)
        assert (len(ended), runner._due, runner._readers) == (2, {}, {})

    uvloop.run(scenario())


def test_the_lag_p99_is_what_one_sample_in_a_hundred_exceeds() -> None:
    async def scenario() -> None:
        lag = LoopLag(asyncio.get_running_loop())
        assert lag.p99_s() == 0.0
        for late_ms in [1] * 990 + [40] * 10:
            lag.record(late_ms / 1000 + 1e-6)
        assert round(lag.p99_s(), 4) == 0.001
        lag.record(0.04)
        lag.record(5.0)
        assert round(lag.p99_s(), 4) == 0.04
        lag.stop()

    uvloop.run(scenario())
