"""The linearised model against the integrated one."""

from __future__ import annotations

from math import exp, inf, pi

import numpy as np
import pytest

from dlbctl.sim.equilibrium import GRADIENT, LATENCY, RIF, Cost, Equilibrium, equilibrium
from dlbctl.sim.fluid import State, Trajectory, default_stepsizes, flow, integrate
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.service import Queue
from dlbctl.sim.stability import Linearised, judge
from tests.sim.networks import scattered


def swings(network: Network, found: Equilibrium, cost: Cost, factor: float, period_s: float) -> list[float]:
    """How far a small disturbance swings in each of 24 periods."""
    nudged = found.shares * np.where(found.shares > 1e-6, 1.0, 0.0)
    nudged[:, 0] *= 1.0 + 1e-3
    start = State(found.in_flight, nudged / nudged.sum(axis=1, keepdims=True))
    step_s = min(0.01, period_s / 200.0)
    rule = flow(factor * default_stepsizes(network))
    run = integrate(network, cost, rule, 24.0 * period_s, start=start, step_s=step_s)
    periods = np.array_split(run.in_flight, 24)
    return [float(np.ptp(part, axis=0).max()) for part in periods]


@pytest.mark.parametrize(
    ("seed", "load", "cost"),
    [(2, 0.8, GRADIENT), (1, 0.5, RIF), (1, 0.8, LATENCY)],
    ids=["gradient", "rif", "latency"],
)
def test_swinging_sets_in_where_the_linearised_model_says(seed: int, load: float, cost: Cost) -> None:
    """By bisection on the integrated model, to 3 %: the last interval is as wide as that."""
    network = scattered(seed, cells=3, load=load)
    found = equilibrium(network, cost)
    onset = Linearised(network, found, default_stepsizes(network)).onset()
    stable, swinging = onset.factor / 1.25, onset.factor * 1.25
    for _ in range(4):
        middle = (stable * swinging) ** 0.5
        size = swings(network, found, cost, middle, onset.period_s)
        stable, swinging = (middle, swinging) if size[-1] < size[12] else (stable, middle)
    assert (stable * swinging) ** 0.5 == pytest.approx(onset.factor, rel=0.03)


def test_the_characteristic_root_is_the_rate_and_period_of_the_swing() -> None:
    network = scattered(2, cells=3, load=0.8)
    found = equilibrium(network, GRADIENT)
    linear = Linearised(network, found, default_stepsizes(network))
    onset = linear.onset()
    for part in (0.8, 1.1):
        root = linear.mode(part * onset.factor)
        assert (root.real < 0.0) == (part < 1.0)
        size = swings(network, found, GRADIENT, part * onset.factor, onset.period_s)
        growth = np.log(size[20] / size[10]) / 10.0  # per period
        assert growth == pytest.approx(root.real * onset.period_s, abs=0.03)


def test_the_root_at_the_onset_is_imaginary() -> None:
    network = scattered(1, cells=4, load=0.8)
    linear = Linearised(network, equilibrium(network, LATENCY), default_stepsizes(network))
    onset = linear.onset()
    root = linear.mode(onset.factor)
    assert root.real == pytest.approx(0.0, abs=1e-3 * abs(root))
    assert 2.0 * pi / root.imag == pytest.approx(onset.period_s, rel=1e-3)


def test_onset_of_two_queues_against_the_scalar_equation() -> None:
    """Two alike queues, one source, one delay: s (s + m) + k exp(-2 tau s) = 0 with k = eta lambda f' / 1.

    On the imaginary axis: w / m = tan(pi / 2 - 2 tau w), and k = w sqrt(w^2 + m^2).
    """
    rate, demand, tau_s = 10.0, 10.0, 0.1
    network = Network(
        (Cell("a", 1.0, Queue(rate)), Cell("b", 1.0, Queue(rate))),
        {"s": demand},
        {("s", "a"): tau_s, ("s", "b"): tau_s},
    )
    found = equilibrium(network, LATENCY)
    n = 1.0  # each gets 5 of 10 requests/s: n / (1 + n) = 1/2
    drain, steepness = rate / (1.0 + n) ** 2, 1.0 / rate
    low, high = 1e-9, pi / (4.0 * tau_s) - 1e-9
    for _ in range(200):
        w = (low + high) / 2.0
        low, high = (w, high) if w / drain < np.tan(pi / 2.0 - 2.0 * tau_s * w) else (low, w)
    # A change of +d at a is -d at b: x_a moves by -eta (f' d - f' (-d)) / 2.
    eta = w * (w * w + drain * drain) ** 0.5 / (demand * steepness)
    linear = Linearised(network, found, np.array([1.0]))
    onset = linear.onset()
    assert onset.factor == pytest.approx(eta, rel=2e-3)
    assert onset.period_s == pytest.approx(2.0 * pi / w, rel=2e-3)
    late_s = 2.0 * tau_s + 1.0 / drain
    assert linear.safe_stepsize() == pytest.approx(pi / 2.0 / (steepness / drain * demand * late_s), rel=1e-4)


@pytest.mark.parametrize("cost", [GRADIENT, LATENCY, RIF], ids=lambda cost: cost.name)
@pytest.mark.parametrize(("load", "speed"), [(0.3, 1.0), (0.8, 1.0), (0.8, 10.0), (0.95, 1.0)])
def test_the_safe_stepsize_is_safe(load: float, speed: float, cost: Cost) -> None:
    for seed in range(4):
        network = scattered(seed, cells=4, load=load, speed=speed)
        found = equilibrium(network, cost)
        linear = Linearised(network, found, np.ones(4))
        assert linear.safe_stepsize() < linear.onset().factor


def test_without_delays_nothing_swings_for_ever() -> None:
    cells = (Cell("a", 1.0, Queue(10.0)), Cell("b", 1.0, Queue(10.0)))
    network = Network(cells, {"s": 10.0}, {("s", "a"): 0.0, ("s", "b"): 0.0})
    assert Linearised(network, equilibrium(network, LATENCY), np.ones(1)).onset().factor == inf


def made_up(values: list[float], network: Network) -> Trajectory:
    loads = np.array(values)[:, None] * np.ones(len(network.cells))
    state = State(loads[-1], network.by_servers)
    return Trajectory(0.1, 0.1 * np.arange(len(values), dtype=np.float64), loads, loads, network.by_servers, state)


@pytest.mark.parametrize("period", [36.7, 37.3, 120.05])
def test_the_period_of_a_cycle_is_the_shortest_and_none_of_its_multiples(period: float) -> None:
    cells = (Cell("a", 1.0, Queue(10.0)), Cell("b", 1.0, Queue(10.0)))
    network = Network(cells, {"s": 10.0}, {("s", "a"): 0.0, ("s", "b"): 0.0})
    swing = [1.0 + 0.4 * np.sin(2 * pi * i / period) + 0.3 * np.sin(4 * pi * i / period) for i in range(8000)]
    found = judge(network, equilibrium(network, LATENCY), made_up(swing, network))
    assert found.period_s == pytest.approx(period / 10.0, abs=0.1)


def test_a_swing_that_dies_is_no_cycle_and_one_that_lasts_is() -> None:
    cells = (Cell("a", 1.0, Queue(10.0)), Cell("b", 1.0, Queue(10.0)))
    network = Network(cells, {"s": 10.0}, {("s", "a"): 0.0, ("s", "b"): 0.0})
    found = equilibrium(network, LATENCY)  # one request in each
    lasting = judge(network, found, made_up([1.0 + 0.5 * np.sin(2 * pi * i / 37.0) for i in range(2000)], network))
    assert (lasting.outcome, lasting.cell) == ("cycle", "a")
    assert lasting.period_s == pytest.approx(3.7)
    assert lasting.amplitude == pytest.approx(0.5, rel=0.02)
    dying = [1.0 + 0.5 * exp(-i / 700.0) * np.sin(2 * pi * i / 37.0) for i in range(2000)]
    assert judge(network, found, made_up(dying, network)).outcome == "settling"
    assert judge(network, found, made_up([1.0] * 2000, network)).outcome == "converged"
    assert judge(network, found, made_up([1.5 - i * 1e-4 for i in range(2000)], network)).outcome == "settling"
    assert judge(network, found, made_up([1.0 + i * 0.1 for i in range(2000)], network)).outcome == "diverging"
