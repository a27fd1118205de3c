"""The delay table: complete, symmetric, and some known figures in the right places."""

from __future__ import annotations

from itertools import product

import pytest

from dlbctl.fleet.regions import WITHIN_REGION_MS, known_regions, one_way_ms


def test_every_pair_has_a_delay_and_both_directions_agree() -> None:
    assert len(known_regions()) == 14 + 3
    for source, destination in product(known_regions(), repeat=2):
        delay_ms = one_way_ms(source, destination)
        assert delay_ms is not None
        assert delay_ms == one_way_ms(destination, source)
        assert WITHIN_REGION_MS <= delay_ms <= 165


def test_no_detour_is_twice_as_quick_as_the_direct_way() -> None:
    """A figure in the wrong row or column of the triangle breaks this at once."""
    regions = known_regions()
    for source, middle, destination in product(regions, repeat=3):
        direct = one_way_ms(source, destination) or 0.0
        detour = (one_way_ms(source, middle) or 0.0) + (one_way_ms(middle, destination) or 0.0)
        assert detour * 2 > direct


@pytest.mark.parametrize(
    ("source", "destination", "delay_ms"),
    [
        ("ap-northeast-1", "ap-northeast-2", 19),
        ("ap-northeast-1", "us-west-2", 51),
        ("eu-central-1", "us-east-1", 48),
        ("us-west-1", "us-west-2", 12),
        ("sa-east-1", "ap-southeast-1", 165),
        ("us-ashburn", "eu-frankfurt", 48),
        ("us-ashburn", "ap-seoul", 93),
        ("eu-frankfurt", "ap-seoul", 117),
        ("us-ashburn", "us-east-1", WITHIN_REGION_MS),
        ("us-ashburn", "us-ashburn", WITHIN_REGION_MS),
    ],
)
def test_known_pairs(source: str, destination: str, delay_ms: float) -> None:
    assert one_way_ms(source, destination) == delay_ms


def test_a_region_outside_the_table_has_no_delay() -> None:
    assert one_way_ms("us-ashburn", "on-prem-1") is None
    assert one_way_ms("on-prem-1", "on-prem-1") is None
