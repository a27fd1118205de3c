"""flow-pi in the fluid model, by the router's own step: it reaches the optimum; and who swings is found out there."""

from __future__ import annotations

import numpy as np
import pytest

from dlbctl.core.mechanisms.flow_pi import KAPPA
from dlbctl.core.swings import Swings
from dlbctl.sim.equilibrium import GRADIENT, Cost, equilibrium
from dlbctl.sim.fluid import Rule, default_stepsizes, flow, flow_pi, integrate
from dlbctl.sim.network import Array, Network
from dlbctl.sim.stability import judge
from tests.sim.networks import scattered


def stretched(load: float, farthest_s: float) -> Network:
    """Four cells and sources, so loaded, with delays up to so much."""
    base = scattered(3, load=load)
    factor = farthest_s / max(base.one_way_s.values())
    return Network(base.cells, base.demand_rps, {arc: delay_s * factor for arc, delay_s in base.one_way_s.items()})


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.6, 0.7, 0.8])
@pytest.mark.parametrize("farthest_s", [0.0, 0.03, 0.125, 0.25])
def test_flow_pi_reaches_the_optimum_within_one_percent(load: float, farthest_s: float) -> None:
    """By 120 s, where ten minutes are asked for. flow of the default stepsize swings at 80 % from 30 ms on."""
    network = stretched(load, farthest_s)
    found = equilibrium(network, GRADIENT)
    run = integrate(network, GRADIENT, flow_pi(default_stepsizes(network, KAPPA), GRADIENT), 160.0)
    assert judge(network, found, run).outcome == "converged"
    latency_s = network.mean_latency_s(run.in_flight[run.tail].mean(axis=0), run.mean_shares)
    assert latency_s == pytest.approx(found.mean_latency_s, rel=0.01)


def alarms(network: Network, cost: Cost, rule: Rule, duration_s: float) -> list[float]:
    """When each source's detector first said that its shares swing; nothing of one that never did."""
    detectors = [Swings() for _ in network.sources]
    first_s: dict[int, float] = {}
    now_s = 0.0

    def watching(shares: Array, costs: Array, step_s: float) -> Array:
        nonlocal now_s
        now_s += step_s
        moved = rule(shares, costs, step_s)
        for number, (detector, row) in enumerate(zip(detectors, moved.tolist(), strict=True)):
            detector.look(now_s, row, np.inf)
            if detector.swinging:
                first_s.setdefault(number, now_s)
        return moved

    integrate(network, cost, watching, duration_s)
    return sorted(first_s.values())


def test_a_stepsize_that_is_too_large_is_found_out_at_every_source() -> None:
    network = stretched(0.8, 0.125)
    found = alarms(network, GRADIENT, flow(default_stepsizes(network)), 20.0)
    assert len(found) == 4
    assert found[-1] < 15.0


def test_one_that_is_small_enough_raises_no_alarm() -> None:
    network = stretched(0.6, 0.125)
    assert alarms(network, GRADIENT, flow(default_stepsizes(network)), 30.0) == []
    assert alarms(network, GRADIENT, flow_pi(default_stepsizes(network, KAPPA), GRADIENT), 30.0) == []
