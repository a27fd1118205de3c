"""The tournament against a plain look at all numbers."""

from __future__ import annotations

from collections import Counter
from math import inf, nan, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.tournament import Tournament

numbers = st.lists(st.floats(0.0, 10.0) | st.just(inf), min_size=1, max_size=70)


@given(numbers, st.lists(st.tuples(st.integers(0, 69), st.floats(0.0, 10.0)), max_size=30))
@settings(max_examples=60)
def test_the_least_and_those_near_it_are_what_a_look_at_all_finds(
    values: list[float], changes: list[tuple[int, float]]
) -> None:
    order = Tournament(values)
    for place, value in changes:
        if place < len(values):
            values[place] = value
            order.change(place, value)
        assert order.least == min(values)
        limit = min(min(values) * 1.01, 1e9)
        near = {place for place, value in enumerate(values) if value <= limit}
        found = order.within(limit)
        assert len(found) == len(set(found))
        assert set(found) == near if len(near) <= 64 else set(found) <= near


@pytest.mark.parametrize(("equals", "others"), [(1, 500), (5, 500), (200, 300), (65, 1000), (64, 1)])
def test_each_of_the_equals_is_as_likely(equals: int, others: int) -> None:
    """4000 draws within five standard deviations: 1 chance in 5000 of some place among the 335 here."""
    rng = Random(equals)
    values = [1.0] * equals + [2.0] * others
    rng.shuffle(values)
    order = Tournament(values)
    draws = [order.any_within(1.01, rng) for _ in range(4000)]
    assert {only for _, only in draws} == {equals == 1}
    counts = Counter(place for place, _ in draws)
    share = 1 / equals
    for place, value in enumerate(values):
        expected = 4000 * share if value == 1.0 else 0.0
        assert abs(counts[place] - expected) <= (5 * sqrt(4000 * share * (1 - share)) + 1 if expected else 0.0)


def test_what_is_no_number_is_never_the_least() -> None:
    order = Tournament([nan, 3.0, inf])
    assert order.least == 3.0
    order.change(1, nan)
    assert order.least == inf
    assert Tournament([]).least == inf
