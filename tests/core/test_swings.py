"""Whether shares swing: what is told from noise and from settling, when, and what a throttle makes of it."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, pi, sin, sqrt
from random import Random

import pytest

from dlbctl.core.swings import LEAST, LOOK_S, WORTH, Swings, Throttle

Series = Callable[[float], float]


def shares(first: float) -> list[float]:
    return [first, 0.8 - first, 0.2]


def watched(first: Series, until_s: float, slowest_s: float = inf) -> tuple[Swings, float | None, float]:
    """Shares of which the first goes like this: in the end, when swinging was seen first, how much of the time."""
    swings, began_s, on = Swings(), None, 0
    looks = round(until_s / LOOK_S)
    for number in range(looks):
        swings.look(number * LOOK_S, shares(first(number * LOOK_S)), slowest_s)
        on += swings.swinging
        if swings.swinging and began_s is None:
            began_s = number * LOOK_S
    return swings, began_s, on / looks


def swing(period_s: float, extent: float = 0.1) -> Series:
    return lambda at_s: 0.4 + extent * sin(2.0 * pi * at_s / period_s)


@pytest.mark.parametrize("period_s", [0.45, 1.0, 2.3, 7.0, 18.0])
def test_a_swing_is_seen_within_a_few_periods_whatever_its_period(period_s: float) -> None:
    swings, began_s, on = watched(swing(period_s), 12.0 * period_s)
    assert swings.swinging
    assert began_s is not None
    assert began_s <= 8.0 * period_s
    assert on > 0.5
    assert swings.period_s == pytest.approx(period_s, rel=0.2)
    assert swings.extent == pytest.approx(0.1 * 2.0**0.5, rel=0.25)  # two shares swing by a tenth


def test_a_swing_with_noise_upon_it_is_seen() -> None:
    rng = Random(1)
    _, began_s, _ = watched(lambda at_s: swing(5.0)(at_s) + rng.gauss(0.0, 0.03), 60.0)
    assert began_s is not None


def test_one_too_small_to_matter_is_not_worth_an_alarm() -> None:
    size = (0.4**2 + 0.4**2 + 0.2**2) ** 0.5
    assert watched(swing(3.0, 0.7 * WORTH * size / 2.0**0.5), 60.0)[1] is None
    assert watched(swing(3.0, 1.4 * WORTH * size / 2.0**0.5), 60.0)[1] is not None


def test_one_slower_than_the_loop_can_swing_is_the_demands_own() -> None:
    assert watched(swing(30.0), 200.0, slowest_s=20.0)[1] is None
    assert watched(swing(4.0), 60.0, slowest_s=20.0)[1] is not None


@pytest.mark.parametrize(
    "settling",
    [
        lambda at_s: 0.4 + 0.3 * exp(-at_s / 20.0),
        lambda at_s: 0.4 + 0.3 * exp(-at_s / 3.0) * sin(2.0 * pi * at_s / 8.0),  # rings, and is quiet in one period
        lambda at_s: 0.2 if at_s < 30.0 else 0.6,
        lambda at_s: 0.4,
    ],
    ids=["slowly", "ringing", "at once", "still"],
)
def test_shares_that_settle_do_not_swing(settling: Series) -> None:
    assert watched(settling, 120.0)[1] is None


def wandering(rng: Random, memory_s: float) -> Series:
    """Gaussian, with a correlation that falls by a factor of e in that time; large enough to be worth an alarm."""
    kept = exp(-LOOK_S / memory_s) if memory_s else 0.0
    new = sqrt(1.0 - kept * kept)
    state = 0.0

    def series(at_s: float) -> float:
        nonlocal state
        state = kept * state + new * rng.gauss(0.0, 0.05)
        return 0.4 + state

    return series


@pytest.mark.parametrize("memory_s", [0.0, 1.0, 10.0])
def test_chance_alone_is_hardly_ever_taken_for_a_swing(memory_s: float) -> None:
    """Five minutes, without any alarm; in many hours there is one now and then (docs/measurements.md)."""
    assert watched(wandering(Random(5), memory_s), 300.0)[1] is None


def test_a_herd_that_turns_to_another_cell_each_time_is_seen() -> None:
    """Everything goes to one of six cells drawn at random, every second: nothing comes back after a period."""
    rng, swings, at = Random(2), Swings(), [0.0] * 6
    seen = []
    for number in range(600):
        if number % 10 == 0:
            wanted = [0.0] * 6
            wanted[rng.randrange(6)] = 1.0
        at = [0.7 * share + 0.3 * want for share, want in zip(at, wanted, strict=True)]
        swings.look(number * LOOK_S, at, inf)
        seen.append(swings.swinging)
    assert any(seen[:200])


def test_a_swing_that_ends_is_over_soon() -> None:
    swings, _, _ = watched(lambda at_s: swing(2.0)(min(at_s, 20.0)), 60.0)
    assert not swings.swinging


def test_shares_of_others_are_looked_at_anew() -> None:
    swings, _, _ = watched(swing(2.0), 20.0)
    swings.restart()
    swings.look(20.1, [0.5, 0.5], inf)
    assert not swings.swinging


def test_after_a_long_sleep_it_begins_anew() -> None:
    swings, _, _ = watched(swing(2.0), 20.0)
    swings.look(3600.0, shares(0.4), inf)
    assert not swings.swinging


def throttled(extent: Callable[[float, float], float], until_s: float, period_s: float = 2.0) -> Throttle:
    """What comes of a swing whose extent is a function of time and of the factor."""
    swings, throttle = Swings(), Throttle()
    for number in range(round(until_s / LOOK_S)):
        at_s = number * LOOK_S
        if swings.look(at_s, shares(swing(period_s, extent(at_s, throttle.factor))(at_s)), inf):
            throttle.follow(at_s, swings)
    return throttle


def test_a_swing_that_stays_halves_the_stepsize_again_and_again_but_not_for_ever() -> None:
    assert throttled(lambda at_s, factor: 0.1, 12.0).factor < 1.0
    assert throttled(lambda at_s, factor: 0.1, 200.0).factor == LEAST


def test_once_it_abates_the_stepsize_is_halved_no_more_and_then_regrows() -> None:
    """One that ends below half of the stepsize: it is found, halved at most twice, and regrown by 5 % per period."""
    calmed = throttled(lambda at_s, factor: 0.1 if factor > 0.5 and at_s < 30.0 else 0.0, 20.0)
    assert 0.25 <= calmed.factor < 1.0
    regrown = throttled(lambda at_s, factor: 0.1 if factor > 0.5 and at_s < 30.0 else 0.0, 200.0)
    assert regrown.factor == 1.0


def test_regrowth_is_by_five_percent_a_second_or_a_period() -> None:
    for period_s, expected in ((0.5, 0.5 * 1.05**10), (5.0, 0.5 * 1.05**2)):
        swings, throttle = Swings(), Throttle()
        swings.period_s = period_s
        throttle.follow(0.0, swings)
        throttle.factor = 0.5
        for number in range(1, 101):
            throttle.follow(0.1 * number, swings)
        assert throttle.factor == pytest.approx(expected, rel=1e-9)
