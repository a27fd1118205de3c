"""Equilibria against closed forms, against a general solver, and against their own definition."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize

from dlbctl.core.curve import Curve
from dlbctl.core.errors import DlbctlError
from dlbctl.core.policy import Cost as CoreCost
from dlbctl.sim import equilibrium as solver
from dlbctl.sim.equilibrium import COSTS, GRADIENT, LATENCY, RIF, Cost, certified, equilibrium, optimum, wardrop
from dlbctl.sim.network import Array, Cell, Network
from dlbctl.sim.service import Polynomial, Queue, Service
from tests.sim.networks import one_place, scattered

EXACT = 3e-6  # relative: what a residual of 1e-6 leaves open, and some


@pytest.mark.parametrize("demand", [1.0, 5.0, 9.0, 14.0])
def test_the_optimum_of_two_queues_is_the_square_root_rule(demand: float) -> None:
    fast, slow = 10.0, 5.0
    found = optimum(one_place({"fast": Queue(fast), "slow": Queue(slow)}, demand))
    # Equal marginal costs rate / (rate - z)^2, unless the slow one is better left alone.
    spare = (fast + slow - demand) / (sqrt(fast) + sqrt(slow))
    expected = fast - sqrt(fast) * spare if sqrt(slow) > spare else demand
    assert found.flow_rps[0] == pytest.approx(expected, rel=EXACT)
    assert found.flow_rps.sum() == pytest.approx(demand, rel=1e-12)


@pytest.mark.parametrize("demand", [3.0, 9.0, 14.0])
def test_selfish_requests_see_the_same_latency_in_two_queues(demand: float) -> None:
    found = wardrop(one_place({"fast": Queue(10.0), "slow": Queue(5.0)}, demand))
    assert found.flow_rps[0] == pytest.approx(min((demand + 5.0) / 2.0, demand), rel=EXACT)


def test_rif_routing_loads_all_servers_alike_however_fast_and_far_they_are() -> None:
    network = scattered(1)
    found = equilibrium(network, RIF)
    loads = found.in_flight / network.servers
    assert loads == pytest.approx(loads[0], rel=EXACT)
    # Every source sends alike, because none knows how far it is.
    assert found.shares == pytest.approx(np.tile(found.flow_rps / network.demand.sum(), (4, 1)), rel=1e-4)


def test_alike_cells_are_loaded_alike_and_nobody_travels() -> None:
    curve = Curve(0.8, 0.08, 8.0, 2.0)
    cells = tuple(Cell(name, 5.0, curve) for name in "abc")
    distances = {(source, cell): 0.0 if source == cell else 0.04 for source in "abc" for cell in "abc"}
    network = Network(cells, dict.fromkeys("abc", 40.0), distances)
    for cost in (GRADIENT, LATENCY):
        assert equilibrium(network, cost).shares == pytest.approx(np.eye(3), abs=1e-9)


def test_an_overfull_place_spills_until_the_journey_costs_as_much_as_the_wait() -> None:
    cells = (Cell("here", 1.0, Queue(10.0)), Cell("there", 1.0, Queue(10.0)))
    network = Network(cells, {"here": 9.0}, {("here", "here"): 0.0, ("here", "there"): 0.1})
    found = wardrop(network)
    latency = [cell.service.latency_s(n) for cell, n in zip(cells, found.in_flight, strict=True)]
    assert latency[0] == pytest.approx(latency[1] + 0.2, rel=EXACT)
    # 1 / (10 - z) = 1 / (10 - (9 - z)) + 0.2
    z = float(found.flow_rps[0])
    assert 1.0 / (10.0 - z) == pytest.approx(1.0 / (1.0 + z) + 0.2, rel=1e-5)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("speed", [1.0, 10.0])
@pytest.mark.parametrize("load", [0.3, 0.8, 0.95, 0.999])
@pytest.mark.parametrize("cells", [2, 5, 10])
def test_every_solution_is_certified(cells: int, load: float, speed: float, cost: Cost) -> None:
    network = scattered(cells, cells=cells, load=load, speed=speed)
    found = equilibrium(network, cost)
    assert found.residual <= solver.TOLERANCE
    assert found.shares.sum(axis=1) == pytest.approx(1.0, rel=1e-12)
    assert [cell.rate_rps(n) for cell, n in zip(network.cells, found.in_flight, strict=True)] == pytest.approx(
        list(found.flow_rps), rel=1e-9
    )


FULL = 0.999  # beyond this part of a cell's capacity the potential goes on as a straight line


def potential(network: Network, cost: Cost, shares: Array) -> float:
    """Of the optimum and of Wardrop: p_j by quadrature over the flow, independently of the solver's pieces."""
    total = float((network.demand[:, None] * shares * cost.network_s(network)).sum())
    for cell, z in zip(network.cells, network.demand @ shares, strict=True):
        top = min(float(z), FULL * cell.capacity_rps)
        total += quad(lambda s, c=cell: price(c, cost, s), 0.0, top, limit=200)[0]
        total += (float(z) - top) * price(cell, cost, top)
    return total


def price(cell: Cell, cost: Cost, rate_rps: float) -> float:
    rate_rps = min(rate_rps, FULL * cell.capacity_rps)
    return cost.of(cell.service, cell.in_flight_at(rate_rps) / cell.servers)


@pytest.mark.parametrize("cost", [GRADIENT, LATENCY], ids=lambda cost: cost.name)
@pytest.mark.parametrize("seed", [3, 4])
def test_a_general_solver_finds_nothing_less(seed: int, cost: Cost) -> None:
    """SLSQP on the shares themselves, with the potential's gradient, from shares by servers."""
    network = scattered(seed, cells=3, load=0.6)

    def shaped(x: Array) -> Array:
        return np.clip(x, 0.0, 1.0).reshape(network.admissible.shape)

    def gradient(x: Array) -> Array:
        flow = network.demand @ shaped(x)
        prices = np.array([price(cell, cost, z) for cell, z in zip(network.cells, flow, strict=True)])
        return np.asarray((network.demand[:, None] * (prices + cost.network_s(network))).ravel())

    mine = equilibrium(network, cost)
    sums_to_one: Any = {"type": "eq", "fun": lambda x: shaped(x).sum(axis=1) - 1.0}
    options: Any = {"ftol": 1e-12, "maxiter": 300}
    found = minimize(  # type: ignore[call-overload]
        lambda x: potential(network, cost, shaped(x)),
        network.by_servers.ravel(),
        jac=gradient,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * network.admissible.size,
        constraints=sums_to_one,
        options=options,
    )
    least = potential(network, cost, mine.shares)
    assert least <= found.fun * (1.0 + 1e-9)
    assert least == pytest.approx(found.fun, rel=1e-5)
    assert network.demand @ shaped(found.x) == pytest.approx(mine.flow_rps, rel=5e-3, abs=0.05)


def test_no_random_routing_beats_the_optimum() -> None:
    network = scattered(5, cells=3)
    least = optimum(network).mean_latency_s
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(2000):
        shares = rng.dirichlet(np.ones(3), size=3)
        if (network.demand @ shares < network.capacity_rps).all():
            seen += 1
            assert certified(network, GRADIENT, shares).mean_latency_s > least
    assert seen > 200


def test_the_optimums_value_is_the_mean_latency() -> None:
    """p_j(z) = N_j for the gradient cost (the convex program of which the optimum is the solution)."""
    network = scattered(6, cells=3)
    found = optimum(network)
    value = potential(network, GRADIENT, found.shares) / network.demand.sum()
    assert value == pytest.approx(found.mean_latency_s, rel=1e-6)


def test_shares_that_are_no_equilibrium_are_not_certified() -> None:
    network = scattered(7, load=0.5)
    assert certified(network, GRADIENT, network.by_servers).residual > 0.01


def test_a_solution_that_did_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "MOST_ROUNDS", 1)
    with pytest.raises(DlbctlError, match="equilibrium of gradient could not be solved: costs still differ by"):
        optimum(scattered(7))


def test_residency_is_kept() -> None:
    base = scattered(8, cells=4, load=0.5)
    arcs = {arc: delay for arc, delay in base.one_way_s.items() if arc[0] != "s0" or arc[1] in ("c0", "c1")}
    found = optimum(Network(base.cells, base.demand_rps, arcs))
    assert found.shares[0, 2:] == pytest.approx(0.0, abs=0.0)
    assert found.mean_latency_s >= optimum(base).mean_latency_s * (1.0 - 1e-6)


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_those_that_routers_use(name: str) -> None:
    class View:
        load, tau_s, curve = 7.3, 0.031, Curve(0.8, 0.08, 8.0, 2.0)

    mine = COSTS[name]
    network = 2.0 * View.tau_s if mine.with_network else 0.0
    assert mine.of(View.curve, View.load) + network == CoreCost.load(name).of(View())  # type: ignore[arg-type]


def pigou(constant_s: float, other: Polynomial, demand: float = 1.0) -> Network:
    return one_place({"constant": Polynomial(constant_s), "other": other}, demand)


def anarchy(network: Network) -> float:
    return solver.price_of_anarchy(network)


def test_pigous_pair_costs_a_third() -> None:
    """L = 1 beside L = z with demand 1: all take the second, half of them should (Roughgarden and Tardos 2002)."""
    network = pigou(1.0, Polynomial(0.0, 1.0))
    assert wardrop(network).flow_rps == pytest.approx([0.0, 1.0], abs=1e-5)
    assert optimum(network).flow_rps == pytest.approx([0.5, 0.5], rel=1e-5)
    assert anarchy(network) == pytest.approx(4.0 / 3.0, rel=1e-5)


@pytest.mark.parametrize("degree", [2.0, 4.0, 10.0])
def test_steeper_links_have_no_common_bound(degree: float) -> None:
    """L = 1 beside L = z^p: 1 / (1 - p (p + 1)^-(p + 1) / p) (Roughgarden 2003), which grows with p."""
    bound = 1.0 / (1.0 - degree * (degree + 1.0) ** (-(degree + 1.0) / degree))
    assert anarchy(pigou(1.0, Polynomial(0.0, 1.0, degree))) == pytest.approx(bound, rel=1e-4)


def test_affine_links_never_cost_more_than_a_third() -> None:
    """Roughgarden and Tardos 2002: 4/3, for any number of sources and cells, distances being constant links."""
    rng = np.random.default_rng(2)
    worst = 1.0
    for _ in range(25):
        cells = tuple(Cell(f"c{i}", 1.0, Polynomial(*rng.exponential(size=2))) for i in range(3))
        distances = {(s, cell.name): float(rng.exponential(0.3)) for s in "st" for cell in cells}
        found = anarchy(Network(cells, {"s": float(rng.exponential()), "t": float(rng.exponential())}, distances))
        worst = max(worst, found)
        assert 1.0 - 1e-5 <= found <= 4.0 / 3.0 + 1e-5
    assert worst > 1.01


def test_queues_side_by_side_never_cost_more_than_their_number() -> None:
    """Haviv and Roughgarden 2007: of n M/M/1 queues, fewer than n times the optimum."""
    rng = np.random.default_rng(3)
    for _ in range(25):
        rates = rng.exponential(size=3) + 0.05
        network = one_place({str(i): Queue(rate) for i, rate in enumerate(rates)}, float(rates.sum() * rng.random()))
        assert anarchy(network) < 3.0


@pytest.mark.parametrize(("remote_s", "rho"), [(20.0, 0.2), (8.0, 0.3), (100.0, 0.05)])
def test_anarchy_of_a_sharp_curve_beside_a_constant(remote_s: float, rho: float) -> None:
    """Past a sharp knee L(z) = rho a / (1 - b z). Beside a link of constant latency A, at the demand that selfish
    requests just send to the curve alone: (1 + u) / (2 u) with u = sqrt(rho a / A), if the optimum is past the knee
    (u <= rho). It has no bound as A / a grows."""
    a, c = 1.0, 8.0
    b = (1.0 - rho) * a / c
    u = sqrt(rho * a / remote_s)
    assert u <= rho
    services: dict[str, Service] = {"constant": Polynomial(remote_s), "curve": Curve(a, b, c, 1e-3 * c)}
    network = one_place(services, (1.0 - u * u) / b)
    assert anarchy(network) == pytest.approx((1.0 + u) / (2.0 * u), rel=2e-4)


@pytest.mark.parametrize("service", [Queue(3.0), Polynomial(0.4, 0.7), Polynomial(0.5), Polynomial(0.0, 2.0, 3.0)])
def test_services_agree_with_themselves(service: Queue | Polynomial) -> None:
    for n in (0.01, 0.5, 3.0, 40.0):
        assert service.rate_per_server(n) * service.latency_s(n) == pytest.approx(n, rel=1e-12)
        step = 1e-5 * n
        slope = (service.rate_per_server(n + step) - service.rate_per_server(n - step)) / (2.0 * step)
        assert service.gradient_s(n) == pytest.approx(1.0 / slope, rel=1e-6)
