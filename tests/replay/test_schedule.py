"""The open loop's instants: real clock, short waits."""

from __future__ import annotations

import asyncio
import ctypes
import time
from typing import TYPE_CHECKING

import pytest
import uvloop

from dlbctl.replay.ahead import Ahead
from dlbctl.replay.alarm import KernelAlarm, LoopAlarm
from dlbctl.replay.lag import LoopLag
from dlbctl.replay.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlbctl.replay.alarm import Alarm


def kernel_alarm(ring: Callable[[], None]) -> Alarm:
    return KernelAlarm(ring, ctypes.CDLL(None, use_errno=True))


@pytest.mark.parametrize("open_alarm", [kernel_alarm, LoopAlarm])
def test_an_alarm_rings_once_never_early_and_at_the_last_instant_set(
    open_alarm: Callable[[Callable[[], None]], Alarm],
) -> None:
    async def main() -> None:
        rung = asyncio.Event()
        instants: list[float] = []

        def ring() -> None:
            instants.append(time.monotonic())
            rung.set()

        alarm = open_alarm(ring)
        begin = time.monotonic()
        alarm.set(1e300)
        alarm.set(begin + 0.010)
        alarm.set(begin + 0.030)
        await rung.wait()
        rung.clear()
        alarm.set(begin)
        await rung.wait()
        alarm.set(time.monotonic() + 0.005)
        alarm.close()
        await asyncio.sleep(0.02)
        assert len(instants) == 2
        # The loop's own timers may be some of a millisecond early; the schedule then sets them again.
        assert instants[0] - begin >= 0.029

    uvloop.run(main())


def test_requests_are_released_in_order_at_their_instants_and_equal_ones_together() -> None:
    async def main() -> list[tuple[int, float]]:
        released: list[tuple[int, float]] = []
        due_s = [0.0, 0.02, 0.02, 0.02, 0.05]
        schedule = Schedule(due_s, lambda index: released.append((index, time.monotonic() - origin_s)))
        origin_s = time.monotonic() + 0.01
        schedule.start(origin_s)
        await schedule.all_released.wait()
        assert repr(schedule) == "<Schedule 5/5 released, 5 in flight>"
        return released

    released = uvloop.run(main())
    assert [index for index, _ in released] == [0, 1, 2, 3, 4]
    assert all(at_s >= due_s for (_, at_s), due_s in zip(released, [0.0, 0.02, 0.02, 0.02, 0.05], strict=True))
    assert released[3][1] - released[1][1] < 0.01


def test_a_full_run_holds_requests_back_and_releases_one_for_each_that_ends() -> None:
    async def main() -> None:
        released: list[int] = []
        schedule = Schedule([0.0] * 4, released.append, max_in_flight=2)
        schedule.start(time.monotonic())
        assert released == [0, 1]
        schedule.ended()
        assert released == [0, 1, 2]
        assert not schedule.all_released.is_set()
        schedule.ended()
        assert (released, schedule.in_flight) == ([0, 1, 2, 3], 2)
        assert schedule.all_released.is_set()

    uvloop.run(main())


def test_a_stopped_schedule_releases_nothing_more_and_knows_how_far_it_came() -> None:
    async def main() -> None:
        released: list[int] = []
        schedule = Schedule([0.0, 0.0, 0.005], released.append, max_in_flight=1)
        schedule.start(time.monotonic())
        schedule.stop()
        schedule.ended()
        await asyncio.sleep(0.02)
        assert (released, schedule.released) == ([0], 1)
        assert schedule.all_released.is_set()

    uvloop.run(main())


def test_requests_are_made_in_order_a_bounded_number_ahead() -> None:
    async def main() -> None:
        made: list[int] = []

        def make(index: int) -> int:
            made.append(index)
            return index

        requests = Ahead(6, make, ahead=2)
        requests.fill()
        assert made == [0, 1]
        assert [requests.take() for _ in range(3)] == [0, 1, 2]
        for _ in range(10):
            await asyncio.sleep(0)
        assert made == [0, 1, 2, 3, 4]
        assert [requests.take() for _ in range(3)] == [3, 4, 5]

    uvloop.run(main())


def test_a_loop_that_is_held_up_is_late_in_its_own_eyes() -> None:
    async def main() -> LoopLag:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0.015)
        begin = time.monotonic()
        while time.monotonic() < begin + 0.06:
            pass
        await asyncio.sleep(0.015)
        lag.stop()
        return lag

    assert max(uvloop.run(main()).late_s) > 0.03
