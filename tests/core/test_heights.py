"""How high each cost lies above the least, by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import e, exp, inf, log, nan, sqrt

import pytest

from dlbctl.core.heights import above_least, log_above_least, relative_to_mean

Heights = Callable[[list[float]], list[float]]
ALL = (above_least, log_above_least, relative_to_mean)


@pytest.mark.parametrize(
    ("heights", "costs", "expected"),
    [
        (above_least, [3.0, 1.0, 1.5], [2.0, 0.0, 0.5]),
        (above_least, [-2.0, 0.0], [0.0, 2.0]),
        (log_above_least, [2.0, 1.0, sqrt(2.0)], [log(2.0), 0.0, 0.5 * log(2.0)]),
        (log_above_least, [0.4 * exp(0.3), 0.4], [0.3, 0.0]),
        (log_above_least, [e, 1.0, 1e6], [1.0, 0.0, 1.0]),
        (log_above_least, [1e-300, 1e300], [0.0, 1.0]),
        # Of 0 there is no logarithm; the mean, 1, is the unit.
        (log_above_least, [0.0, 0.5, 2.5], [0.0, 0.5, 1.0]),
        (relative_to_mean, [0.0, 2.0, 4.0], [0.0, 1.0, 1.0]),
        (relative_to_mean, [8.0, 9.0, 10.0], [0.0, 1.0 / 9.0, 2.0 / 9.0]),
        # A mean of less than one request is no unit: a single one would be worlds apart from none.
        (relative_to_mean, [0.0, 0.1], [0.0, 0.1]),
    ],
)
def test_heights_by_hand(heights: Heights, costs: list[float], expected: list[float]) -> None:
    assert heights(costs) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("heights", ALL)
@pytest.mark.parametrize("bad", [inf, -inf, nan])
def test_a_cost_that_is_no_number_is_highest(heights: Heights, bad: float) -> None:
    found = heights([2.0, bad, 2.0])
    assert found[0] == found[2] == 0.0
    assert found[1] >= 1.0


@pytest.mark.parametrize("heights", ALL)
def test_where_no_cost_is_a_number_there_are_no_heights(heights: Heights) -> None:
    assert heights([inf, nan]) == []
    assert heights([]) == []


@pytest.mark.parametrize("heights", ALL)
def test_equal_costs_are_level(heights: Heights) -> None:
    assert heights([7.0, 7.0, 7.0]) == [0.0, 0.0, 0.0]
