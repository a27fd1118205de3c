"""The wheel fires every deadline once, at most a tick late, whatever the others do."""

from __future__ import annotations

import asyncio
import time

import pytest

from dlbctl.router.wheel import NEVER, TICK_S, Wheel

from .live import on_loop, until


class Item:
    """Something with a deadline."""

    def __init__(self, *, faulty: bool = False) -> None:
        self.deadline_s = NEVER
        self.look_s = NEVER
        self.fired_s: list[float] = []
        self.faulty = faulty

    def expired(self, now_s: float) -> None:
        self.fired_s.append(now_s)
        self.deadline_s = NEVER
        if self.faulty:
            raise RuntimeError("on purpose")


def started() -> Wheel:
    return Wheel(asyncio.get_running_loop(), time.monotonic)


@on_loop
async def test_a_deadline_fires_once_and_not_before_its_time() -> None:
    wheel, item = started(), Item()
    deadline_s = time.monotonic() + 0.15
    wheel.watch(item, deadline_s)
    await until(lambda: item.fired_s != [])
    assert deadline_s <= item.fired_s[0] < deadline_s + 5 * TICK_S
    assert repr(wheel) == "<Wheel 0 watched>"


@on_loop
async def test_a_deadline_that_is_moved_away_by_assignment_is_kept() -> None:
    wheel, item = started(), Item()
    wheel.watch(item, time.monotonic() + 0.05)
    item.deadline_s = moved_s = time.monotonic() + 0.35
    await until(lambda: item.fired_s != [])
    assert item.fired_s[0] >= moved_s
    assert len(item.fired_s) == 1


@on_loop
async def test_a_deadline_that_moves_closer_fires_then_and_once() -> None:
    wheel, item, later = started(), Item(), Item()
    wheel.watch(item, time.monotonic() + 0.4)
    closer_s = time.monotonic() + 0.1
    wheel.watch(item, closer_s)
    wheel.watch(later, time.monotonic() + 0.5)
    await until(lambda: later.fired_s != [])
    assert len(item.fired_s) == 1
    assert item.fired_s[0] < closer_s + 2 * TICK_S


@pytest.mark.parametrize("ago_s", [0.0, 0.05, 1.0, 100.0])
@on_loop
async def test_a_deadline_that_has_long_passed_fires_at_the_next_tick(ago_s: float) -> None:
    wheel, first, item = started(), Item(), Item()
    wheel.watch(first, time.monotonic())
    await until(lambda: first.fired_s != [])
    wheel.watch(first, time.monotonic() + 1.0)  # the wheel is turning
    asked_s = time.monotonic()
    wheel.watch(item, asked_s - ago_s)
    await until(lambda: item.fired_s != [])
    assert item.fired_s[0] - asked_s < 5 * TICK_S
    wheel.stop()


@on_loop
async def test_a_fault_at_one_deadline_stops_time_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    wheel, faulty, same_tick, later = started(), Item(faulty=True), Item(), Item()
    now_s = time.monotonic()
    wheel.watch(faulty, now_s)
    wheel.watch(same_tick, now_s)
    wheel.watch(later, now_s + 0.25)
    await until(lambda: later.fired_s != [])
    assert len(same_tick.fired_s) == 1
    assert "a fault of our own at the deadline" in caplog.text


@on_loop
async def test_a_deadline_that_is_called_off_does_not_fire() -> None:
    wheel, item, later = started(), Item(), Item()
    wheel.watch(item, time.monotonic() + 0.05)
    item.deadline_s = NEVER
    wheel.watch(later, time.monotonic() + 0.2)
    await until(lambda: later.fired_s != [])
    assert item.fired_s == []


@on_loop
async def test_what_has_ended_is_let_go_long_before_a_far_deadline_and_what_has_not_fires_then() -> None:
    hurried = 200  # seconds a second
    wheel = Wheel(asyncio.get_running_loop(), lambda: hurried * time.monotonic())
    ended, item = Item(), Item()
    deadline_s = hurried * time.monotonic() + 200.0
    for each in (ended, item):
        wheel.watch(each, deadline_s)
    ended.deadline_s = NEVER
    await until(lambda: repr(wheel) == "<Wheel 1 watched>")
    assert item.fired_s == []
    await until(lambda: item.fired_s != [])
    assert item.fired_s[0] >= deadline_s
    assert ended.fired_s == []
