"""What a leaf counts and passes on of those who ask it, by the cell they stand in."""

from __future__ import annotations

from random import Random

import pytest

from dlbctl.core.events import Arrival, State
from dlbctl.core.news import News
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.sources import GONE_AFTER_S, MAX_SOURCES, TOLD_AFTER_S, WORKED_OUT_S, ArrivalRates, Distances
from dlbctl.core.tier import Tier


def leaf() -> Tier:
    tier = Tier(TierSettings("leaf", "c1", (TargetSettings("s", ("http://s:1",), ("m", "n")),)), "b00t")
    tier.address_changed(0.0, "s", "http://s:1", True)
    return tier


@pytest.mark.parametrize("past_s", [TOLD_AFTER_S, 8.0, 20.0, 600.0])
def test_a_rate_is_right_from_the_beginning(past_s: float) -> None:
    """Without taking the short past into account it would be half of the truth after one half-life."""
    rates = ArrivalRates()
    for number in range(round(past_s * 100)):
        rates.count(1000.0 + number / 100, "us")
    assert rates.read(1000.0 + past_s) == {"us": pytest.approx(100.0, rel=0.01)}


def test_rates_of_chance_arrivals_are_as_good_as_their_number() -> None:
    """100 sources that never saw each other: mean within 3 standard errors; SD of one is 14 % at 7.2 s * 2 of past."""
    rng = Random(5)
    found = []
    for _ in range(100):
        rates, now_s = ArrivalRates(), 50.0
        while now_s < 80.0:
            rates.count(now_s, "us")
            now_s += rng.expovariate(4.0)
        found.append(rates.read(80.0)["us"])
    assert sum(found) / 100 == pytest.approx(4.0, rel=3 * 0.14 / 10)


def test_a_rate_is_not_told_before_it_is_known_nor_once_it_is_next_to_nothing() -> None:
    rates = ArrivalRates()
    rates.count(10.0, "us")
    assert rates.read(10.0 + TOLD_AFTER_S - WORKED_OUT_S) == {}
    assert list(rates.read(10.0 + TOLD_AFTER_S)) == ["us"]
    assert rates.read(100.0) == {}


def test_of_too_many_sources_the_least_is_forgotten() -> None:
    rates = ArrivalRates()
    for number in range(3 * MAX_SOURCES):
        rates.count(number / 100, f"cell{number}")
        rates.count(number / 100, "steady")
    told = rates.read(TOLD_AFTER_S + 2.0)
    assert len(told) == MAX_SOURCES
    assert "steady" in told


def test_distances_are_those_last_told_by_roots_that_are_still_there() -> None:
    distances = Distances()
    distances.tell(10.0, "us", 0.05)
    distances.tell(11.0, "eu", 0.02)
    distances.tell(12.0, "eu", 0.03)
    assert distances.read(12.0) == {"us": 0.05, "eu": 0.03}
    assert distances.read(10.1 + GONE_AFTER_S) == {"eu": 0.03}
    for number in range(MAX_SOURCES):
        distances.tell(13.0, f"cell{number}", 0.01)
    assert len(distances.read(13.0)) == MAX_SOURCES
    assert "eu" not in distances.read(13.0)


def test_a_leaf_reports_both() -> None:
    tier = leaf()
    tier.pinged(1.0, "us", 0.2, News())
    tier.pinged(1.0, "eu", 0.02, News())
    for number in range(100):
        tier.arrived(1.0 + number / 10, Arrival("id", "m", root="r1", source="us"))
    tier.arrived(1.0, Arrival("id", "n", root="r2", source="eu"))
    tier.arrived(1.0, Arrival("id", "n"))  # a client of the leaf's own has no source
    state = tier.report(11.0)
    assert state.sources == {"us": 0.1, "eu": 0.01}
    assert state.endpoints["m"].arrivals == {"us": pytest.approx(10.0, rel=0.05)}
    assert list(state.endpoints["n"].arrivals) == ["eu"]


def root(**addresses: tuple[str, ...]) -> Tier:
    return Tier(TierSettings("root", "us", tuple(TargetSettings(name, urls) for name, urls in addresses.items())), "r1")


def report(tier: Tier, cell: str, address: str, arrivals: dict[str, float], sources: dict[str, float]) -> None:
    state = leaf().report(0.0)
    state.endpoints["m"].arrivals = arrivals
    tier.state_reported(1.0, cell, address, State(sources=sources, endpoints={"m": state.endpoints["m"]}), 0.01)


def test_a_root_adds_up_the_arrivals_at_the_leaves_of_a_cell_and_takes_the_least_distance() -> None:
    tier = root(eu=("http://eu:1", "http://eu:2"))
    report(tier, "eu", "http://eu:1", {"us": 2.0, "eu": 5.0}, {"us": 0.05, "eu": 0.002})
    report(tier, "eu", "http://eu:2", {"us": 1.0}, {"us": 0.04, "ap": 0.1})
    candidate = tier.endpoints["m"].candidates["eu"]
    assert candidate.arrivals == {"us": 3.0, "eu": 5.0}
    assert candidate.sources == {"us": 0.04, "eu": 0.002, "ap": 0.1}
    tier.address_changed(2.0, "eu", "http://eu:2", False)
    assert candidate.arrivals == {"us": 2.0, "eu": 5.0}
    assert candidate.sources == {"us": 0.05, "eu": 0.002}
