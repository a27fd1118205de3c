"""Scenarios: the same under the same seed, spread as they say, and refused with a reason where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from dlbctl.core.errors import UsageError
from dlbctl.fleet.regions import cloud_regions
from dlbctl.sim.scenario import Purpose, Recipe, Scenario, draw, seed_of

MANY = 400


def many(**changes: object) -> list[Scenario]:
    return [draw(structs.replace(Recipe(), **changes), 1, number) for number in range(MANY)]


def test_a_seed_and_a_number_are_one_scenario() -> None:
    recipe = Recipe()
    assert draw(recipe, 3, 5) == draw(recipe, 3, 5)
    assert draw(recipe, 3, 5) != draw(recipe, 3, 6)
    assert draw(recipe, 3, 5) != draw(recipe, 4, 5)


def test_seeds_stay_what_they_are() -> None:
    """They are a part of every figure that was ever published with its seed."""
    assert seed_of(0, 1, 2, Purpose.ARRIVALS) == 11242213640615774675
    assert len({seed_of(0, s, t, p) for s in range(3) for t in range(3) for p in Purpose}) == 9 * len(Purpose)


def test_one_value_changed_leaves_the_rest_as_it_was() -> None:
    usual = draw(Recipe(), 1, 0)
    busier = draw(Recipe(utilisation=0.9), 1, 0)
    shorter = draw(Recipe(y=4.0), 1, 0)
    burst = draw(Recipe(disturbance="burst"), 1, 0)
    noisy = draw(Recipe(noise=0.3), 1, 0)
    same = draw(Recipe(token_time_sd=0.0), 1, 0)
    assert burst.sites == usual.sites
    for other in (busier, shorter, noisy, same):
        assert [(site.name, site.servers) for site in other.sites] == [
            (site.name, site.servers) for site in usual.sites
        ]
    for before, after in zip(usual.sites, shorter.sites, strict=True):
        assert after.decode_s == pytest.approx(before.decode_s / 4)
        assert after.demand == pytest.approx(before.demand * 4)
    assert busier.sites[0].demand == pytest.approx(usual.sites[0].demand * 0.9 / 0.8)
    assert noisy.sites[0].curve_factor != 1.0


def test_the_sheets_figures() -> None:
    """algorithms.md: .83 s unloaded and 10.8 requests/s per server."""
    recipe = Recipe()
    assert recipe.prompt_mean * recipe.prefill_s + recipe.output_mean * recipe.decode_s == pytest.approx(0.83, abs=0.01)
    assert draw(recipe, 1, 0).nominal_capacity == pytest.approx(10.8, abs=0.05)


def test_cells_servers_and_token_times_are_spread_as_stated() -> None:
    """Tolerances are three standard errors of what 400 scenarios have."""
    scenarios = many()
    counts = [len(scenario.sites) for scenario in scenarios]
    assert (min(counts), max(counts)) == (2, 10)
    assert np.mean(counts) == pytest.approx(6.0, abs=3 * 2.58 / MANY**0.5)
    sites = [site for scenario in scenarios for site in scenario.sites]
    assert np.mean([site.servers for site in sites]) == pytest.approx(10.0, abs=3 * (10 / len(sites)) ** 0.5)
    for times, mean in (([s.prefill_s for s in sites], 0.08e-3), ([s.decode_s for s in sites], 7e-3)):
        assert np.mean(times) == pytest.approx(mean, rel=3 * 0.2 / len(sites) ** 0.5)
        assert np.std(times) == pytest.approx(0.2 * mean, rel=0.06)
    assert {site.region for site in sites} == set(cloud_regions())


def test_demand_is_uniform_on_the_simplex_at_the_utilisation() -> None:
    scenarios = many(utilisation=0.7)
    for scenario in scenarios:
        assert scenario.utilisation(scenario.phases[0]) == pytest.approx(0.7)
    # The largest of n uniform spacings is 1/n (1 + 1/2 + ... + 1/n) on average.
    pairs = [s for s in scenarios if len(s.sites) == 2]
    largest = [max(site.demand for site in s.sites) / sum(site.demand for site in s.sites) for s in pairs]
    assert np.mean(largest) == pytest.approx(0.75, abs=3 * 0.145 / len(pairs) ** 0.5)


def test_cells_of_one_region_are_near_and_others_far() -> None:
    scenario = next(s for s in many() if 1 < len({site.region for site in s.sites}) < len(s.sites))
    delays = scenario.one_way_s()
    for a in scenario.sites:
        for b in scenario.sites:
            assert (delays[a.name, b.name] == 0.0005) == (a.region == b.region)
            assert delays[a.name, b.name] == delays[b.name, a.name]
    assert len(set(scenario.names)) == len(scenario.sites)


def test_equal_hardware_is_equal() -> None:
    for scenario in many(token_time_sd=0.0)[:20]:
        for site in scenario.sites:
            assert site.decode_s == pytest.approx(7e-3)
            assert site.server_capacity == pytest.approx(scenario.nominal_capacity)


def test_a_burst_raises_one_cell_to_the_disturbed_utilisation() -> None:
    for scenario in many(disturbance="burst")[:50]:
        before, during, after = scenario.phases
        assert (before.begins, during.begins, after.begins) == (0.0, 0.3, 0.7)
        assert after.demand == before.demand
        assert during.servers == before.servers
        assert scenario.utilisation(during) == pytest.approx(0.95)
        assert sum(x != y for x, y in zip(before.demand, during.demand, strict=True)) == 1


def test_an_outage_cuts_cells_to_one_server_until_the_system_is_over_the_disturbed_utilisation() -> None:
    for scenario in many(disturbance="outage")[:50]:
        before, during, after = scenario.phases
        assert after.servers == before.servers
        assert during.demand == before.demand
        assert scenario.utilisation(during) > 0.95
        changed = [(x, y) for x, y in zip(before.servers, during.servers, strict=True) if x != y]
        assert changed
        assert all(y == 1 for _, y in changed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"utilisation": 1.2}, "utilisation 1.2: must be above 0 and below 1"),
        ({"utilisation": 0.0}, "utilisation 0"),
        ({"utilisation": float("nan")}, "utilisation nan: must be a number"),
        ({"cells_min": 0}, "between 0 and 10 cells"),
        ({"cells_min": 5, "cells_max": 4}, "between 5 and 4 cells"),
        ({"servers_mean": 0.0}, "servers_mean 0: must be a number above 0"),
        ({"prefill_s": -1.0}, "prefill_s -1: must be a number above 0"),
        ({"token_time_sd": -0.1}, "token_time_sd -0.1: must be a number from 0 on"),
        ({"y": 0.0}, "y 0: must be a number above 0"),
        ({"y": float("inf")}, "y inf"),
        ({"noise": 1.0}, "noise 1: must be below 1"),
        ({"disturbance": "burst", "utilisation": 0.96}, "must be above the utilisation of 0.96"),
        ({"disturbance": "outage", "disturbed_utilisation": 1.0}, "and below 1"),
        ({"disturbance": "burst", "disturbed_from": 0.8}, "must begin before it ends"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        draw(structs.replace(Recipe(), **changes), 1, 0)
    assert words in str(caught.value)
