"""Swept curves against what is known of their cells, and the optimum of scenarios on them."""

from __future__ import annotations

import pytest
from msgspec import structs

from dlbctl.core.curve import Curve
from dlbctl.sim.calibration import Sweep, curve_of, optimum_s, sweeps_of
from dlbctl.sim.scenario import Recipe, draw

# Two cells of one server each, of equal hardware: one sweep.
RECIPE = Recipe(cells_min=2, cells_max=2, servers_mean=0.01, token_time_sd=0.0)


@pytest.fixture(scope="module")
def curves() -> dict[Sweep, Curve]:
    return {sweep: curve_of(sweep) for sweep in sweeps_of(draw(RECIPE, 1, 0), 1)}


def test_an_idle_cell_takes_the_time_of_its_tokens_and_a_full_one_serves_its_capacity(
    curves: dict[Sweep, Curve],
) -> None:
    unloaded_s = RECIPE.prompt_mean * RECIPE.prefill_s + RECIPE.output_mean * RECIPE.decode_s
    for curve in curves.values():
        # 3 % for the mean of 3,000 requests and the form, which is flat where a prefill engine has a short queue.
        assert curve.latency_s(0.0) == pytest.approx(unloaded_s, rel=0.03)
        # The form has one knee, the cell two stages: 8 % at full load, and so much less where cells work.
        full = RECIPE.server_limit
        assert curve.rate_per_server(full) == pytest.approx(
            RECIPE.capacity(RECIPE.prefill_s, RECIPE.decode_s), rel=0.08
        )


def test_the_optimum_lies_between_an_idle_cell_and_a_full_one(curves: dict[Sweep, Curve]) -> None:
    scenario = draw(RECIPE, 1, 0)
    least_s = optimum_s(scenario, 1, curves)
    assert least_s is not None
    assert 0.8 < least_s < 2.0


def test_shorter_requests_have_the_same_curves_in_their_own_time(curves: dict[Sweep, Curve]) -> None:
    """At y = 10 only the network's part does not shrink."""
    usual = optimum_s(draw(RECIPE, 1, 0), 1, curves)
    shorter = draw(structs.replace(RECIPE, y=10.0), 1, 0)
    least_s = optimum_s(shorter, 1, curves)
    assert usual is not None
    assert least_s is not None
    assert usual / 10 <= least_s < usual


def test_without_its_curves_or_a_steady_state_a_scenario_has_no_optimum(curves: dict[Sweep, Curve]) -> None:
    assert optimum_s(draw(RECIPE, 1, 0), 1, {}) is None
    outage = draw(structs.replace(RECIPE, servers_mean=6.0, disturbance="outage"), 1, 0)
    swept = {sweep: next(iter(curves.values())) for sweep in sweeps_of(outage, 1)}
    assert outage.utilisation(outage.phases[1]) > 1.1
    assert optimum_s(outage, 1, swept) is None
