"""What a router knows of its loop, against the fluid model's own figures for the same network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.loops import safe_rate, slowest_swing_s
from dlbctl.core.policy import Cost, Policy
from dlbctl.core.settings import EndpointSettings, FlowSettings
from dlbctl.sim.equilibrium import COSTS, Equilibrium, equilibrium
from dlbctl.sim.network import Network
from dlbctl.sim.stability import Linearised
from tests.core.views import CURVE, Seen
from tests.sim.networks import scattered


@dataclass
class Cell(Seen):
    """A cell as a mechanism sees it that plans for all roots."""

    capacity_rps: float = 0.0
    arrivals: dict[str, float] = field(default_factory=dict)
    sources: dict[str, float] = field(default_factory=dict)


def known_at(network: Network, found: Equilibrium, here: str) -> list[Cell]:
    """The network in its equilibrium as a root in that place knows it: of its own distance by its own measurement."""
    flows = network.demand[:, None] * found.shares
    row = network.sources.index(here)
    cells = []
    for number, cell in enumerate(network.cells):
        assert isinstance(cell.service, Curve)
        taus = dict(zip(network.sources, network.delay_s[:, number].tolist(), strict=True))
        arrivals = dict(zip(network.sources, flows[:, number].tolist(), strict=True))
        cells.append(
            Cell(
                name=cell.name,
                load=float(found.in_flight[number]) / cell.servers,
                tau_s=float(network.delay_s[row, number]),
                curve=cell.service,
                weight=cell.servers,
                arrivals={source: rate for source, rate in arrivals.items() if rate > 1e-6},
                sources={source: tau for source, tau in taus.items() if source != here},
            )
        )
    return cells


@pytest.mark.parametrize("cost", ["gradient", "latency", "rif"])
@pytest.mark.parametrize("here", ["s0", "s2"])
def test_the_safe_stepsize_is_that_of_the_linearised_model_wherever_one_stands(cost: str, here: str) -> None:
    network = scattered(3, load=0.7)
    found = equilibrium(network, COSTS[cost])
    expected = Linearised(network, found, np.ones(4)).safe_stepsize()
    safe = safe_rate(Cost.load(cost), here, known_at(network, found, here), relative=False)
    assert safe == pytest.approx(expected, rel=0.02)


def test_of_relative_costs_it_is_how_steep_their_logarithm_is() -> None:
    cell = Cell(load=8.0, tau_s=0.03, curve=CURVE, weight=4.0, arrivals={"here": 20.0})
    cost = Cost.load("latency")
    ratio = safe_rate(cost, "here", [cell], relative=True) / safe_rate(cost, "here", [cell], relative=False)
    assert ratio == pytest.approx(CURVE.latency_s(8.0) + 0.06)


def test_too_little_is_known_without_curves_or_requests() -> None:
    known = Cell(load=8.0, arrivals={"here": 20.0})
    cost = Cost.load("gradient")
    assert safe_rate(cost, "here", [known], relative=False) > 0.0
    for lacking in (replace(known, curve=None), replace(known, arrivals={}), replace(known, weight=0.0)):
        assert safe_rate(cost, "here", [lacking], relative=False) == 0.0
    assert safe_rate(cost, "here", [], relative=False) == 0.0


def test_a_swing_can_be_as_slow_as_the_slowest_cell_lets_it() -> None:
    near, far = Seen(load=2.0, tau_s=0.01), Seen(load=20.0, tau_s=0.1)
    assert slowest_swing_s([near, far]) == pytest.approx(8.0 * (0.2 + CURVE.gradient_s(20.0)))
    assert slowest_swing_s([near, replace(far, curve=None)]) == inf


def test_the_safe_rule_is_followed_where_it_is_the_smaller_and_known() -> None:
    mechanism = Policy.parse("flow/gradient").start()
    mechanism.configure(EndpointSettings("m", flow=FlowSettings(rule="safe")))
    mechanism.priced(Cost.load("gradient"))
    cells = [Cell(load=12.0, tau_s=0.05, weight=4.0, arrivals={"here": 30.0}, name="a")]
    assert mechanism.stepsize(cells) == pytest.approx(0.2)
    assert mechanism.program(0.0, "here", cells) is None
    safe = safe_rate(Cost.load("gradient"), "here", cells, relative=False)
    assert safe < 0.2
    assert mechanism.stepsize(cells) == safe
    mechanism.configure(EndpointSettings("m", flow=FlowSettings(rule="safe", stepsize=0.7)))
    assert mechanism.stepsize(cells) == 0.7
