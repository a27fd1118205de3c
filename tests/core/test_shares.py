"""Drawing by shares: by chance, and so that at every moment each has had its due."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from dlbctl.core.shares import EvenPoints, Urn


@pytest.mark.parametrize(
    ("shares", "point", "index"),
    [
        ([0.2, 0.3, 0.5], 0.0, 0),
        ([0.2, 0.3, 0.5], 0.1999, 0),
        ([0.2, 0.3, 0.5], 0.2, 1),
        ([0.2, 0.3, 0.5], 0.9999, 2),
        ([4.0, 12.0], 0.25, 1),
        ([0.0, 1.0, 0.0], 0.0, 1),
        ([0.0, 1.0, 0.0], 0.99999, 1),
        ([1e-320, 1e-320, 0.0], 0.9999999999999999, 1),  # their product with the point rounds to their sum
        ([0.0, 0.0], 0.5, -1),
        ([], 0.5, -1),
    ],
)
def test_whose_part_a_point_falls_in(shares: list[float], point: float, index: int) -> None:
    assert Urn(shares).draw(point) == index


def drawn(shares: list[float], count: int, seed: int) -> list[int]:
    urn, points, rng = Urn(shares), EvenPoints(), Random(seed)
    return [urn.draw(points.next(rng)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_even_points_keep_shares_at_every_moment(seed: int) -> None:
    """Nobody is ever more than a few requests from what is due: 2.7 on average of 20,000, where chance leaves 60."""
    rng = Random(seed)
    weights = [rng.expovariate(1.0) for _ in range(rng.randint(2, 30))]
    shares = [weight / sum(weights) for weight in weights]
    got = [0] * len(shares)
    for number, index in enumerate(drawn(shares, 5000, seed), start=1):
        got[index] += 1
        assert max(abs(count - number * share) for count, share in zip(got, shares, strict=True)) < 4.0


def test_even_points_come_to_each_at_nearly_equal_distances() -> None:
    """Three gaps at most, of which the largest is the sum of the others."""
    turns = [number for number, index in enumerate(drawn([0.1, 0.9], 5000, 1)) if index == 0]
    gaps = sorted({after - before for before, after in pairwise(turns)})
    assert len(gaps) <= 3
    assert 5 <= gaps[0] <= gaps[-1] <= 20


def test_what_alternates_is_spread_evenly_too() -> None:
    """Every second request is large, and half go to each: a round robin would send all large ones to one."""
    large = Counter(drawn([0.5, 0.5], 2000, 7)[::2])
    assert abs(large[0] - 500) <= 4


def test_even_points_begin_by_chance_and_a_seed_decides_it() -> None:
    assert drawn([0.3, 0.7], 50, 3) == drawn([0.3, 0.7], 50, 3)
    assert len({tuple(drawn([0.3, 0.7], 50, seed)) for seed in range(20)}) > 5
