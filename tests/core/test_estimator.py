"""A cell's curve is kept fitted in small pieces; what is published only ever gets newer."""

from __future__ import annotations

from math import exp, log, sqrt
from random import Random

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.estimator import EXPIRY_S, REFIT_S, REST_S, STEP_S, Estimator
from dlbctl.core.fit import STEPS_MAX, CurveFit
from dlbctl.core.samples import NOTHING, InFlight

TRUTH = Curve(a=0.8, b=0.096, c=6.0, s=1.5)


def feed(estimator: Estimator, now_s: float, *, count: int = 400, seed: int = 1, truth: Curve = TRUTH) -> None:
    rng = Random(seed)
    sigma = sqrt(log(1.0 + 0.3**2))
    for _ in range(count):
        n = rng.uniform(0.5, 16.0)
        estimator.add(now_s, now_s, n, truth.latency_s(n) * rng.lognormvariate(-(sigma**2) / 2, sigma))


def work(estimator: Estimator, now_s: float) -> float:
    """As a tier does it."""
    if estimator.due(now_s):
        estimator.begin(now_s)
    return estimator.work(now_s)


def work_until_rest(estimator: Estimator, now_s: float) -> tuple[float, int]:
    """Call when asked to until a fit is over; when to call next, and how many calls it took."""
    for calls in range(1, 2 * STEPS_MAX):
        next_s = work(estimator, now_s)
        if next_s > now_s + STEP_S:
            return next_s, calls
        now_s = next_s
    raise AssertionError("the fit does not end")


def curve_of(estimator: Estimator) -> Curve:
    assert estimator.curve is not None, estimator.reason
    return estimator.curve


def test_without_samples_it_rests_and_says_why_there_is_no_curve() -> None:
    estimator = Estimator(Random(1))
    assert work_until_rest(estimator, 5.0) == (5.0 + REST_S, 1)
    assert estimator.curve is None
    assert estimator.reason == "no request has ended yet"


def test_a_call_before_its_time_does_nothing() -> None:
    estimator = Estimator(Random(1))
    work(estimator, 5.0)
    feed(estimator, 5.0)
    assert work(estimator, 5.0 + 0.9 * REST_S) == 5.0 + REST_S
    assert "samples" in repr(estimator)


def test_each_call_does_one_bounded_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    step = CurveFit.step

    def counted(fit: CurveFit) -> bool:
        nonlocal steps
        steps += 1
        return step(fit)

    monkeypatch.setattr(CurveFit, "step", counted)
    estimator = Estimator(Random(1))
    feed(estimator, 0.0)
    now_s, calls = 0.0, 0
    while estimator.curve is None:
        before = steps
        next_s = work(estimator, now_s)
        assert steps - before <= 1
        calls += 1
        assert calls <= STEPS_MAX + 2
        now_s = next_s
    assert steps >= 2  # it did not converge at once, so pieces were seen


def test_a_curve_is_published_with_a_version_and_renewed_when_there_are_new_samples() -> None:
    estimator = Estimator(Random(1))
    feed(estimator, 0.0)
    next_s, _ = work_until_rest(estimator, 0.0)
    first = curve_of(estimator)
    assert first.version == 1
    assert first.latency_s(8.0) == pytest.approx(TRUTH.latency_s(8.0), rel=0.1)
    assert estimator.reason == ""

    next_s, calls = work_until_rest(estimator, next_s)
    assert calls == 1  # nothing new: no fit, no new version to send around
    assert curve_of(estimator) is first

    feed(estimator, next_s, seed=2)
    work_until_rest(estimator, next_s)
    assert curve_of(estimator).version == 2


def test_the_old_curve_is_kept_when_the_samples_have_become_too_few() -> None:
    estimator = Estimator(Random(1))
    feed(estimator, 0.0)
    work_until_rest(estimator, 0.0)
    first = curve_of(estimator)
    later_s = 3600.0  # forty half-lives
    feed(estimator, later_s, count=3)
    work_until_rest(estimator, later_s)
    assert curve_of(estimator) is first
    assert estimator.reason


def test_few_samples_make_no_curve_and_the_reason_says_so() -> None:
    estimator = Estimator(Random(1))
    feed(estimator, 0.0, count=5)
    work_until_rest(estimator, 0.0)
    assert estimator.curve is None
    assert "sample" in estimator.reason


def test_a_cell_that_changed_is_followed() -> None:
    estimator = Estimator(Random(1))
    feed(estimator, 0.0)
    next_s, _ = work_until_rest(estimator, 0.0)
    slower = TRUTH.perturbed(2.0)
    later_s = next_s + 900.0
    feed(estimator, later_s, truth=slower, seed=3)
    work_until_rest(estimator, later_s)
    assert curve_of(estimator).latency_s(10.0) == pytest.approx(slower.latency_s(10.0), rel=0.1)


@pytest.mark.parametrize("latency_s", [0.0, -1.0])
def test_a_latency_that_is_none_is_no_sample(latency_s: float) -> None:
    """The client stalled for as long as the request took, to the resolution of the clock."""
    estimator = Estimator(Random(1))
    estimator.add(0.0, 0.0, 1.0, latency_s)
    assert estimator.bins(0.0) == []


def test_without_new_samples_the_doubt_grows_and_after_ten_minutes_the_curve_is_dropped() -> None:
    estimator = Estimator(Random(1))
    feed(estimator, 0.0, count=3000)
    now_s, doubts = 0.0, []
    while now_s < EXPIRY_S - 1.0:
        next_s, calls = work_until_rest(estimator, now_s)
        if calls > 1:
            doubts.append(curve_of(estimator).sd_log_gradient)
        now_s = max(next_s, now_s + 0.1 * REFIT_S)
    assert len(doubts) > 0.9 * EXPIRY_S / REFIT_S
    assert doubts[0] < 0.2
    assert doubts[-1] > 2.0 * doubts[0]
    last = curve_of(estimator).version
    work_until_rest(estimator, EXPIRY_S + 0.1)
    assert (estimator.curve, estimator.tail) == (None, None)
    assert estimator.reason == "no request has ended for 600 s"

    feed(estimator, EXPIRY_S + 5.0)
    work_until_rest(estimator, EXPIRY_S + 5.0)
    assert curve_of(estimator).version == last + 1  # it never counts back


def test_what_is_in_flight_counts() -> None:
    """The same samples; those at high load that would be slow have not ended yet."""
    curves = []
    for in_flight in (NOTHING, InFlight([6.0 + 0.05 * i for i in range(200)], [10.0] * 200)):
        estimator = Estimator(Random(1))
        feed(estimator, 0.0)
        estimator.begin(0.0, in_flight)
        work_until_rest(estimator, 0.0)
        curves.append(curve_of(estimator))
    assert curves[1].latency_s(13.0) > 1.5 * curves[0].latency_s(13.0)


def test_the_tail_is_a_curve_of_its_own() -> None:
    """CV 0.3: the 95th percentile of a log-normal is 1.55 times its mean. 4,000 samples in 24 bins."""
    estimator = Estimator(Random(1))
    feed(estimator, 0.0, count=4000)
    work_until_rest(estimator, 0.0)
    tail = estimator.tail
    assert tail is not None
    sigma = sqrt(log(1.0 + 0.3**2))
    for n in (2.0, 8.0, 14.0):
        assert tail.latency_s(n) == pytest.approx(TRUTH.latency_s(n) * exp(1.645 * sigma - sigma**2 / 2), rel=0.06)
