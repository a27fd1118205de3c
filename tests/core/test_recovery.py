"""A cell that its users have left is found to be faster than its curve, soon and not by chance."""

from __future__ import annotations

from random import Random

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.estimator import Estimator
from dlbctl.core.fit import SAMPLES_MIN
from dlbctl.core.recovery import AGE_MAX_S, WINDOW, Recovery

CURVE = Curve(a=3.0, b=0.3, c=6.0, s=1.5)


def verdicts(latencies_s: list[float], apart_s: float = 2.0) -> list[tuple[float, float]]:
    recovery, found = Recovery(), []
    for number, latency_s in enumerate(latencies_s):
        recovery.add(apart_s * number, 0.0, latency_s)
        verdict = recovery.verdict(apart_s * number, CURVE)
        found += [verdict] if verdict is not None else []
    return found


def test_a_cell_that_is_three_times_as_fast_is_found_out_within_a_window() -> None:
    latency_s = CURVE.latency_s(0.0)
    ((factor, since_s),) = verdicts([latency_s] * 20 + [latency_s / 3.0] * WINDOW)
    assert factor == pytest.approx(1 / 3)
    assert 40.0 <= since_s < 40.0 + 2.0 * WINDOW


def test_one_that_is_slower_is_left_to_its_users() -> None:
    assert verdicts([3.0 * CURVE.latency_s(0.0)] * 50) == []


def test_what_is_spread_over_a_long_time_proves_nothing() -> None:
    assert verdicts([0.5] * 50, apart_s=1.01 * AGE_MAX_S / (WINDOW - 1)) == []


@pytest.mark.parametrize(("cv", "most"), [(0.2, 0), (0.5, 3), (1.0, 12)])
def test_chance_is_seldom_taken_for_a_recovery(cv: float, most: int) -> None:
    """An hour of 1,800 requests as the curve has them, gamma distributed.

    Means of four seeds: 0, 0.75 and 6.5. With exponential times (CV 1) the SD of ten is a poor one. A false alarm draws
    users for as long as it takes them to correct the curve; requests that are alike, as these are, give none.
    """
    rng, shape = Random(3), cv**-2
    latency_s = CURVE.latency_s(0.0)
    found = verdicts([latency_s * rng.gammavariate(shape, 1 / shape) for _ in range(1800)])
    assert len(found) <= most


def test_the_curve_of_before_keeps_its_shape_and_takes_the_level_of_now() -> None:
    """Trained on 3 + .3 n for two minutes, then nobody comes; the leaf's own requests take a third of it."""
    rng, estimator = Random(1), Estimator(Random(2))
    for number in range(1200):
        load = 10.0 * rng.random()
        latency_s = CURVE.latency_s(load) * rng.gammavariate(25.0, 1 / 25.0)
        estimator.add(number / 10.0 + latency_s, number / 10.0, load, latency_s)
    _fit(estimator, 120.0)
    assert estimator.curve is not None
    before = estimator.curve
    for number in range(WINDOW):
        estimator.explored(151.0 + 2.0 * number, 150.0 + 2.0 * number, 0.0, CURVE.latency_s(0.0) / 3.0)
    now_s = 150.0 + 2.0 * WINDOW
    _fit(estimator, now_s)
    after = estimator.curve
    for load in (0.0, 4.0, 8.0):
        assert after.latency_s(load) == pytest.approx(before.latency_s(load) / 3.0, rel=0.1)
    # What comes from now on outweighs what is only remembered.
    assert SAMPLES_MIN < sum(one.n_eff for one in estimator.bins(now_s)) < 2 * SAMPLES_MIN


def _fit(estimator: Estimator, now_s: float) -> None:
    assert estimator.due(now_s)
    estimator.begin(now_s)
    while (next_s := estimator.work(now_s)) < now_s + 0.5:
        now_s = next_s
