"""The projection onto the simplex against closed forms, its optimality conditions and another solver."""

from __future__ import annotations

from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from dlbctl.core.projection import onto_simplex

vectors = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
# Such as a step of the shares makes: sums of which no digit is lost.
near = st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], [1.0]),
        ([0.25, 0.75], [0.25, 0.75]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([5.0, 5.0], [0.5, 0.5]),
        ([0.5, 0.0], [0.75, 0.25]),
        ([2.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([1.0, 0.0], [1.0, 0.0]),
        ([0.6, 0.5, -9.0], [0.55, 0.45, 0.0]),
        ([-inf, 0.3, 0.3], [0.0, 0.5, 0.5]),
        ([1e9, 1e9 + 0.5], [0.25, 0.75]),
        ([-1e300, 0.0], [0.0, 1.0]),
    ],
)
def test_closed_forms(values: list[float], expected: list[float]) -> None:
    assert onto_simplex(values) == pytest.approx(expected, abs=1e-15)


@given(vectors)
def test_it_is_on_the_simplex(values: list[float]) -> None:
    shares = onto_simplex(values)
    assert all(share >= 0.0 for share in shares)
    assert sum(shares) == pytest.approx(1.0, abs=1e-12)


@given(near)
def test_it_is_the_nearest_point(values: list[float]) -> None:
    """Necessary and sufficient (Karush, Kuhn, Tucker): v - x is one number where x > 0, and no greater elsewhere."""
    shares = onto_simplex(values)
    gaps = [value - share for value, share in zip(values, shares, strict=True)]
    theta = max(gaps)
    assert all(gap == pytest.approx(theta, abs=1e-12) for gap, share in zip(gaps, shares, strict=True) if share > 0.0)


@given(near, st.floats(-100.0, 100.0))
def test_what_moves_all_alike_moves_nothing(values: list[float], step: float) -> None:
    assert onto_simplex([value + step for value in values]) == pytest.approx(onto_simplex(values), abs=1e-12)


@given(near)
def test_a_point_of_the_simplex_stays(values: list[float]) -> None:
    shares = onto_simplex(values)
    assert onto_simplex(shares) == pytest.approx(shares, abs=1e-14)


@pytest.mark.parametrize("seed", range(10))
def test_a_quadratic_program_finds_the_same(seed: int) -> None:
    """min |x - v|^2 with x >= 0, and sum x = 1 weighed in as a heavy residual: right to its inverse square, 1e-6."""
    rng, weight = Random(seed), 1e4
    values = [rng.gauss(0.0, 0.5) for _ in range(rng.randint(2, 30))]
    count = len(values)
    found, _ = nnls(np.vstack([np.eye(count), np.full((1, count), weight)]), np.append(values, weight))
    assert onto_simplex(values) == pytest.approx(found.tolist(), abs=1e-6)
