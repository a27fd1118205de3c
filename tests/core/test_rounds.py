"""Rounds of mechanisms that learn, in a tier: when they come, what they see, and what they leave alone."""

from __future__ import annotations

import pytest

from dlbctl.core import snapshot
from dlbctl.core.events import Arrival, EndpointState, Forward, State
from dlbctl.core.mechanism import ROUND_S
from dlbctl.core.settings import EndpointSettings, FlowSettings, TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from tests.core.views import POLICIES

NOW_S = 100.0
NAMES = ("a", "b", "c")


def root(*policies: str, stepsize: float = 1.0) -> Tier:
    """Endpoints m0, m1, ... with these policies at cells that have reported."""
    targets = tuple(TargetSettings(name, (f"http://{name}:1",)) for name in NAMES)
    endpoints = tuple(
        EndpointSettings(f"m{n}", policy, flow=FlowSettings(stepsize)) for n, policy in enumerate(policies)
    )
    tier = Tier(TierSettings("root", "here", targets, endpoints, seed=3), "b00t")
    for name in NAMES:
        report(tier, name)
    return tier


def report(tier: Tier, cell: str, rif: int = 0, k: float = 2.0) -> None:
    states = dict.fromkeys(tier.endpoints, EndpointState(rif=rif, k=k))
    tier.state_reported(NOW_S, cell, f"http://{cell}:1", State(endpoints=states), 0.01)


def shares(tier: Tier, endpoint: str = "m0") -> dict[str, float]:
    found = {row.endpoint: row.shares for row in snapshot.endpoints(tier)}[endpoint]
    assert found is not None
    return found


def test_only_who_learns_in_rounds_wakes_the_router_for_them() -> None:
    tier = root("discrete/rif", "weighted-random", "argmin/rif")
    assert tier.timer_fired(NOW_S).at_s == NOW_S + 1.0
    tier.policy_set(NOW_S, "m1", "flow/rif")
    assert tier.timer_fired(NOW_S).at_s == pytest.approx(NOW_S + ROUND_S)
    tier.policy_set(NOW_S, "m1", "")
    assert tier.timer_fired(NOW_S).at_s == NOW_S + 1.0


def test_rounds_leave_other_endpoints_costs_to_their_requests() -> None:
    tier = root("flow/rif", "discrete/rif")
    report(tier, "a", rif=8)
    tier.timer_fired(NOW_S)
    assert tier.endpoints["m0"].candidates["a"].cost == 4.0
    assert tier.endpoints["m1"].candidates["a"].stale


def test_the_beat_is_steady_though_the_timer_is_not() -> None:
    tier = root("flow/rif")
    start_s = tier.timer_fired(NOW_S).at_s - ROUND_S
    for late_s in (0.004, 0.0, 0.009, -0.0005, 0.002):
        due_s = tier.timer_fired(start_s + ROUND_S + late_s).at_s
        assert due_s == pytest.approx(start_s + 2 * ROUND_S)
        start_s += ROUND_S
    # Several were missed: one is made, and the beat goes on from there.
    assert tier.timer_fired(start_s + 1.0).at_s == pytest.approx(start_s + 1.0 + ROUND_S)


def test_a_timer_that_fires_for_something_else_makes_no_round() -> None:
    tier = root("flow/rif")
    report(tier, "a", rif=100)
    due_s = tier.timer_fired(NOW_S).at_s
    before = shares(tier)
    assert tier.timer_fired(NOW_S + 0.3 * ROUND_S).at_s == due_s
    assert shares(tier) == before
    tier.timer_fired(due_s)
    assert shares(tier) != before


def test_a_round_sees_what_was_reported_last() -> None:
    """x - eta dt c with eta 1 and dt .1 s, from thirds: 2 requests a server at `a` take .2 off, all get a third."""
    tier = root("flow/rif")
    tier.timer_fired(NOW_S)
    report(tier, "a", rif=4)
    tier.timer_fired(NOW_S + 0.1)
    third = 1.0 / 3.0
    assert shares(tier) == pytest.approx({"a": third - 0.4 / 3, "b": third + 0.2 / 3, "c": third + 0.2 / 3})


def test_what_was_learned_outlives_whatever_settles_anew() -> None:
    tier = root("flow/rif")
    tier.timer_fired(NOW_S)
    report(tier, "a", rif=4)
    tier.timer_fired(NOW_S + 0.1)
    learned = shares(tier)
    report(tier, "b", k=3.0)
    tier.endpoints_changed([EndpointSettings("m0", "flow/rif", flow=FlowSettings(7.0))])
    tier.policy_set(NOW_S, "m0", "flow/rif")
    assert shares(tier) == pytest.approx(learned, abs=1e-12)
    (row,) = snapshot.endpoints(tier)
    assert row.stepsize == 7.0
    tier.policy_set(NOW_S, "m0", "flow/latency")
    assert shares(tier) == pytest.approx({"a": 2 / 7, "b": 3 / 7, "c": 2 / 7})


def test_a_cell_that_cannot_be_reached_has_no_share_until_it_can() -> None:
    tier = root("flow/rif")
    tier.timer_fired(NOW_S)
    tier.address_changed(NOW_S, "b", "http://b:1", False)
    assert shares(tier) == {"a": 0.5, "c": 0.5}
    tier.timer_fired(NOW_S + 0.1)
    assert shares(tier) == {"a": 0.5, "c": 0.5}
    for name in ("a", "c"):
        tier.address_changed(NOW_S, name, f"http://{name}:1", False)
    tier.timer_fired(NOW_S + 0.2)
    assert snapshot.endpoints(tier)[0].shares is None
    report(tier, "b")
    tier.timer_fired(NOW_S + 0.3)
    assert shares(tier) == {"b": 1.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cell_without_servers_divides_by_nothing(policy: str) -> None:
    tier = root(policy)
    report(tier, "a", rif=4, k=0.0)
    for name in ("b", "c"):
        report(tier, name, rif=2)
    for _ in range(3):
        assert isinstance(tier.arrived(NOW_S, Arrival("id", "m0", 100)), Forward)
        tier.timer_fired(NOW_S)
    a, *others = snapshot.cells(tier, NOW_S)
    assert (a.routable, a.load, a.cost) == (False, 0.0, None)
    assert all(cell.routable for cell in others)


@pytest.mark.parametrize(("policy", "counted"), [("discrete/rif", 3), ("power-of-d/rif", 3), ("flow/rif", 0)])
def test_what_is_on_its_way_counts_where_the_mechanism_wants_it(policy: str, counted: int) -> None:
    tier = root(policy)
    for _ in range(3):
        assert isinstance(tier.arrived(NOW_S, Arrival("id", "m0")), Forward)
    assert sum(row.rif for row in snapshot.cells(tier, NOW_S)) == counted
    tier.policy_set(NOW_S, "m0", "argmin/rif" if counted else "discrete/rif")
    assert sum(row.rif for row in snapshot.cells(tier, NOW_S)) == 3 - counted


def test_a_policy_without_a_cost_shows_none() -> None:
    tier = root("weighted-random")
    report(tier, "a", k=6.0)
    (row,) = snapshot.endpoints(tier)
    assert (row.policy, row.cost, row.unit, row.why) == ("weighted-random", "", "", "")
    assert row.shares == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2})
    assert row.stepsize is None
    assert {cell.cost for cell in snapshot.cells(tier, NOW_S)} == {None}


def test_a_server_that_starts_slowly_is_drawn_by_the_weight_it_has_so_far() -> None:
    targets = tuple(TargetSettings(name, (f"http://{name}:1",), ("m0",), weight=2.0) for name in NAMES)
    tier = Tier(TierSettings("leaf", "here", targets, (EndpointSettings("m0", "weighted-random"),), seed=3), "b00t")
    for name in (*NAMES, "a"):
        tier.address_changed(NOW_S, name, f"http://{name}:1", True)
    tier.address_changed(NOW_S, "a", "http://a:1", False)
    tier.address_changed(NOW_S, "a", "http://a:1", True)
    assert shares(tier) == pytest.approx({"a": 0.1 / 2.1, "b": 1 / 2.1, "c": 1 / 2.1})
