"""The fluid model: where it comes to rest, what it keeps, how late things are in it."""

from __future__ import annotations

import numpy as np
import pytest

from dlbctl.core.errors import DlbctlError
from dlbctl.sim.equilibrium import COSTS, GRADIENT, LATENCY, RIF, Cost, Equilibrium, equilibrium, optimum
from dlbctl.sim.fluid import Rule, State, argmin, default_stepsizes, flow, integrate
from dlbctl.sim.network import Array, Cell, Network
from dlbctl.sim.service import Polynomial, Queue
from dlbctl.sim.stability import Linearised, judge
from tests.sim.networks import one_place, scattered


def calm(network: Network, found: Equilibrium) -> Rule:
    """Flow with a third of the stepsizes at which it would begin to swing."""
    stepsizes = default_stepsizes(network)
    return flow(0.3 * Linearised(network, found, stepsizes).onset().factor * stepsizes)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_flow_routing_comes_to_rest_at_the_equilibrium_of_its_cost(cost: Cost) -> None:
    network = scattered(2, cells=3, load=0.5)
    found = equilibrium(network, cost)
    run = integrate(network, cost, calm(network, found), 120.0)
    assert judge(network, found, run).outcome == "converged"
    assert run.end.in_flight == pytest.approx(found.in_flight, rel=1e-3, abs=0.01)
    latency_s = network.mean_latency_s(run.end.in_flight, run.end.shares)
    if cost.with_network:  # else it depends on shares that RIF does not determine
        assert latency_s == pytest.approx(found.mean_latency_s, rel=1e-3)


def test_flow_on_the_marginal_cost_reaches_the_least_latency() -> None:
    network = scattered(3, cells=5, load=0.5)
    found = optimum(network)
    run = integrate(network, GRADIENT, calm(network, found), 120.0)
    latency_s = network.mean_latency_s(run.end.in_flight, run.end.shares)
    assert latency_s == pytest.approx(found.mean_latency_s, rel=5e-4)


def test_at_the_equilibrium_nothing_moves() -> None:
    network = scattered(2, cells=3, load=0.5)
    found = equilibrium(network, LATENCY)
    start = State(found.in_flight, found.shares)
    run = integrate(network, LATENCY, flow(default_stepsizes(network)), 20.0, start=start)
    assert np.ptp(run.in_flight, axis=0) == pytest.approx(0.0, abs=1e-3)
    assert run.end.shares == pytest.approx(found.shares, abs=1e-4)


def test_least_cost_herds_when_it_sees_late() -> None:
    """Two alike places, everything late: argmin swings for ever, flow settles."""
    cells = (Cell("a", 10.0, Queue(10.0)), Cell("b", 10.0, Queue(10.0)))
    arcs = {(source, cell): 0.05 if source == cell else 0.15 for source in "ab" for cell in "ab"}
    network = Network(cells, {"a": 100.0, "b": 60.0}, arcs)
    found = equilibrium(network, RIF)
    herd = judge(network, found, integrate(network, RIF, argmin, 60.0))
    assert herd.outcome == "cycle"
    assert herd.period_s is not None
    assert herd.amplitude is not None
    assert 0.2 < herd.period_s < 2.0
    assert herd.amplitude > 2.0
    settled = judge(network, found, integrate(network, RIF, flow(np.array([0.02, 0.02])), 150.0))
    assert settled.outcome == "converged"


def test_argmin_is_all_on_the_least_and_equals_share() -> None:
    costs = np.array([[1.0, 2.0, np.inf], [3.0, 1.0, 1.0]])
    assert argmin(np.zeros((2, 3)), costs, 0.01) == pytest.approx(np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]))


def test_requests_arrive_one_way_later_and_costs_are_seen_one_way_later() -> None:
    """One source, one near and one far cell, both empty at first: the far one's load begins after its delay."""
    cells = (Cell("near", 1.0, Polynomial(1.0)), Cell("far", 1.0, Polynomial(1.0)))
    network = Network(cells, {"s": 2.0}, {("s", "near"): 0.0, ("s", "far"): 0.5})
    seen: list[Array] = []

    def turn(shares: Array, costs: Array, step_s: float) -> Array:
        seen.append(costs.copy())
        return np.array([[0.0, 1.0]])

    run = integrate(network, RIF, turn, 2.0, start=State(np.zeros(2), np.array([[1.0, 0.0]])), step_s=0.01)
    first_load = run.time_s[np.flatnonzero(run.in_flight[:, 1] > 0.0)[0]]
    assert first_load == pytest.approx(0.5, abs=0.025)
    first_seen = 0.01 * np.flatnonzero(np.array(seen)[:, 0, 1] > 0.0)[0]
    assert first_seen == pytest.approx(1.0, abs=0.035)
    # Linear service of 1 s: N(t) = 2 (1 - exp(-(t - 0.5))).
    assert run.in_flight[-1, 1] == pytest.approx(2.0 * (1.0 - np.exp(-1.5)), rel=0.02)


def test_delays_between_steps_are_interpolated() -> None:
    network = Network((Cell("a", 1.0, Polynomial(1.0)),), {"s": 1.0}, {("s", "a"): 0.0137})
    start = State(np.zeros(1), np.ones((1, 1)))
    seen: list[float] = []

    def look(shares: Array, costs: Array, step_s: float) -> Array:
        seen.append(float(costs[0, 0]))
        return shares

    run = integrate(network, RIF, look, 1.0, start=start, step_s=0.01)
    exact = np.interp(run.time_s - 0.0137, run.time_s, run.in_flight[:, 0])
    assert seen[4:-1] == pytest.approx(exact[5:], rel=1e-9)  # shares are of the step's end


def test_requests_are_kept() -> None:
    """What was sent and has arrived is what was served and what is in flight."""
    network = one_place({"a": Queue(10.0), "b": Queue(20.0)}, 20.0)
    run = integrate(network, LATENCY, flow(np.array([1.0])), 30.0)
    served = [
        sum(cell.rate_rps(n) for n in run.in_flight[:, index]) * run.step_s for index, cell in enumerate(network.cells)
    ]
    assert run.sent_rps.sum(axis=1) == pytest.approx(20.0, rel=1e-12)
    assert sum(served) + run.end.in_flight.sum() == pytest.approx(20.0 * run.step_s * len(run.time_s), rel=1e-9)


def test_half_the_step_gives_the_same() -> None:
    network = scattered(2, cells=3, load=0.8)
    runs = [
        integrate(network, LATENCY, flow(default_stepsizes(network)), 60.0, step_s=step_s) for step_s in (0.01, 0.005)
    ]
    assert runs[0].in_flight[::10] == pytest.approx(runs[1].in_flight[::20], rel=0.02, abs=0.5)


def test_residency_holds_on_the_way() -> None:
    base = scattered(8, cells=4, load=0.5)
    arcs = {arc: delay for arc, delay in base.one_way_s.items() if arc[0] != "s0" or arc[1] in ("c0", "c1")}
    network = Network(base.cells, base.demand_rps, arcs)
    run = integrate(network, GRADIENT, flow(default_stepsizes(network)), 20.0)
    assert run.mean_shares[0, 2:] == pytest.approx(0.0, abs=0.0)
    assert run.mean_shares.sum(axis=1) == pytest.approx(1.0, rel=1e-9)


def test_what_is_fed_more_than_it_serves_diverges() -> None:
    network = one_place({"small": Queue(5.0), "large": Queue(30.0)}, 20.0)
    run = integrate(network, RIF, lambda shares, costs, step_s: shares, 60.0)  # half to each
    assert judge(network, equilibrium(network, RIF), run).outcome == "diverging"


def test_a_run_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(DlbctlError, match="more than 5,000,000 steps"):
        integrate(scattered(1), LATENCY, argmin, 1e6)


def test_stepsizes_are_inverse_to_the_mean_delay() -> None:
    cells = (Cell("a", 1.0, Queue(5.0)), Cell("b", 1.0, Queue(5.0)))
    network = Network(cells, {"s": 1.0, "t": 1.0}, {("s", "a"): 0.0, ("s", "b"): 0.1, ("t", "b"): 0.0})
    assert default_stepsizes(network) == pytest.approx([0.01 / 0.05, 0.01 / 0.001])
