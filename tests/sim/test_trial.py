"""A run of a scenario: its arrivals, its changes, and that it is a function of its seed."""

from __future__ import annotations

import dataclasses
from random import Random
from statistics import fmean

import pytest
from msgspec import structs

from dlbctl.sim.contender import Contender
from dlbctl.sim.scenario import Recipe, draw
from dlbctl.sim.trial import Trial, run_trial, sizes, world_plan

SMALL = Recipe(cells_min=2, cells_max=3, servers_mean=2.0)


def trial(recipe: Recipe = SMALL, policy: str = "argmin/rif", **changes: object) -> Trial:
    usual = Trial(draw(recipe, 1, 0), Contender(policy), trial=0, seed=1, duration_s=20.0, warm_up_s=5.0)
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_a_run_is_a_function_of_its_seed() -> None:
    assert run_trial(trial()) == run_trial(trial())
    assert run_trial(trial()) != run_trial(trial(trial=1))


def test_all_contenders_meet_the_same_arrivals() -> None:
    counts = {run_trial(trial(policy=policy)).requests for policy in ("weighted-random", "argmin/rif", "flow/gradient")}
    assert len(counts) == 1


def test_a_run_has_the_demand_that_the_scenario_says() -> None:
    asked = trial(duration_s=100.0)
    figures = run_trial(asked)
    expected = sum(asked.scenario.phases[0].demand) * 100.0
    assert figures.requests == pytest.approx(expected, abs=4 * expected**0.5)
    assert figures.unfinished == 0
    assert sum(figures.cell_shares.values()) == pytest.approx(1.0)


def test_tokens_have_the_means_of_the_recipe() -> None:
    """Within four standard errors of 20,000 draws."""
    rng = Random(1)
    drawn = [sizes(SMALL)(rng) for _ in range(20_000)]
    prompts, outputs = zip(*drawn, strict=True)
    assert fmean(prompts) == pytest.approx(SMALL.prompt_mean, abs=4 * 735 / 20_000**0.5)
    assert fmean(outputs) == pytest.approx(SMALL.output_mean, abs=4 * 64 / 20_000**0.5)
    assert min(prompts) >= SMALL.prompt_min
    assert min(outputs) >= SMALL.output_min


def test_a_burst_brings_more_requests_while_it_lasts() -> None:
    recipe = structs.replace(SMALL, utilisation=0.5, disturbance="burst")
    series = run_trial(trial(recipe, duration_s=100.0, warm_up_s=0.0, interval_s=10.0)).series
    usual, raised = ([point.requests for point in series[part]] for part in (slice(0, 3), slice(3, 7)))
    assert fmean(raised) / fmean(usual) == pytest.approx(0.95 / 0.5, rel=0.15)


def test_an_outage_takes_servers_and_gives_them_back() -> None:
    recipe = structs.replace(SMALL, servers_mean=6.0, disturbance="outage")
    series = run_trial(trial(recipe, duration_s=100.0, warm_up_s=0.0, interval_s=10.0)).series
    before, during, after = series[2].rif, series[6].rif, series[9].rif
    assert during > 2 * before
    assert after < 0.5 * during


def test_curve_noise_moves_routing_by_curves_and_no_other() -> None:
    noisy = structs.replace(SMALL, noise=0.9)
    for policy, changes in (("argmin/rif", False), ("argmin/latency", True)):
        exact, wrong = (run_trial(trial(recipe, policy, warm_up_s=30.0)) for recipe in (SMALL, noisy))
        assert (exact != wrong) is changes


def test_mnlb_keeps_requests_where_they_come_from_while_there_is_room() -> None:
    """At 3 % every cell has room for all that is asked for beside it, whatever the simplex gave it."""
    recipe = structs.replace(SMALL, utilisation=0.03)
    drawn = (draw(recipe, 1, number) for number in range(100))
    apart = next(one for one in drawn if len({site.region for site in one.sites}) == len(one.sites))
    asked = trial(recipe, "mnlb", scenario=apart, duration_s=400.0, warm_up_s=30.0)
    demand = asked.scenario.phases[0].demand
    figures = run_trial(asked)
    for site, rate in zip(asked.scenario.sites, demand, strict=True):
        expected = rate / sum(demand)
        error = (expected * (1 - expected) / figures.requests) ** 0.5
        assert figures.cell_shares[site.name] == pytest.approx(expected, abs=4 * error)
    blind = run_trial(dataclasses.replace(asked, contender=Contender("weighted-random")))
    assert blind.mean_s is not None
    assert figures.mean_s is not None
    assert figures.mean_s < blind.mean_s


def test_capacity_is_told_as_it_is_or_as_one_would_have_it() -> None:
    asked = trial(policy="mnlb")
    nominal = dataclasses.replace(asked, contender=Contender("mnlb", "nominal"))
    told = [cell.capacity_rps for cell in world_plan(asked).cells]
    assert told == [site.server_capacity for site in asked.scenario.sites]
    assert {cell.capacity_rps for cell in world_plan(nominal).cells} == {asked.scenario.nominal_capacity}
