"""Intervals against theory: Student's, and as often right as they say."""

from __future__ import annotations

import numpy as np
import pytest

from dlbctl.sim.statistics import Estimate, estimate


def test_one_sample_has_no_interval() -> None:
    assert estimate({0: [2.0]}) == Estimate(2.0, None, None, 1)
    assert estimate({0: [], 1: []}) is None


def test_an_interval_is_students() -> None:
    found = estimate({0: [1.0, 2.0, 3.0]})
    assert found is not None
    assert found.mean == 2.0
    assert found.low is not None
    assert found.high is not None
    # t(0.975, 2 degrees of freedom) = 4.30265
    assert found.high - found.mean == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def coverage(*, scenarios: int, trials: int, scenario_sd: float) -> float:
    """How often the interval of noisy ratios about 0.8 holds 0.8, of 2,000 experiments."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(2_000):
        centres = 0.8 + scenario_sd * rng.standard_normal(scenarios)
        values = {n: (c + 0.05 * rng.standard_normal(trials)).tolist() for n, c in enumerate(centres.tolist())}
        found = estimate(values)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.8 <= found.high
    return held / 2_000


@pytest.mark.parametrize(
    ("scenarios", "trials", "scenario_sd"),
    [(1, 5, 0.0), (3, 5, 0.1), (10, 5, 0.1), (10, 1, 0.1)],
)
def test_intervals_cover_the_truth_as_often_as_they_say(scenarios: int, trials: int, scenario_sd: float) -> None:
    """95 %, within three standard errors of 2,000 draws; trials taken one by one would cover some 60 %."""
    assert coverage(scenarios=scenarios, trials=trials, scenario_sd=scenario_sd) == pytest.approx(0.95, abs=0.015)
