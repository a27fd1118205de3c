"""What a tier shows of itself, row by row, and that showing it changes nothing."""

from __future__ import annotations

import pytest

from dlbctl.core import snapshot
from dlbctl.core.curve import Curve
from dlbctl.core.events import Arrival, EndpointState, Failure, Forward, State, Usage
from dlbctl.core.exchange import Exchange
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
from dlbctl.core.snapshot import CellRow, CurveRow, EndpointRow, ServerRow
from dlbctl.core.tier import Tier

NOW_S = 1000.0
CURVE = Curve(a=0.8, b=0.096, c=6.0, s=1.5, version=2, sd_log_gradient=0.1, n_min=0.0, n_max=12.0, samples=100.0)


def root(*, curve: Curve | None = CURVE) -> Tier:
    """Three cells: `eu` has two leaves that reported, `us` one, `ap` is down."""
    targets = (
        TargetSettings("us", ("http://us:1",)),
        TargetSettings("eu", ("http://eu:1", "http://eu:2")),
        TargetSettings("ap", ("http://ap:1",)),
    )
    tier = Tier(TierSettings("root", "us", targets, (EndpointSettings("m"),), seed=3), "b00t")
    version = curve.version if curve else 0
    for target, address, state, rtt_s in (
        ("us", "http://us:1", EndpointState(rif=4, k=2.0, curve_version=version, curve=curve), 0.002),
        ("eu", "http://eu:1", EndpointState(rif=3, k=4.0, queued_s=0.5, errors=1.0, requests=5.0), 0.096),
        ("eu", "http://eu:2", EndpointState(rif=5, k=4.0, queued_s=0.25, errors=0.0, requests=3.0), 0.1),
    ):
        tier.state_reported(NOW_S, target, address, State(endpoints={"m": state}), rtt_s)
    return tier


def leaf() -> Tier:
    targets = (
        TargetSettings("a", ("http://a:1",), ("m",), weight=2.0, slots=8),
        TargetSettings("b", ("http://b:1",), ("m", "other")),
        TargetSettings("c", ("http://c:1",)),
    )
    tier = Tier(TierSettings("leaf", "eu", targets, seed=3), "b00t")
    for name in "ab":
        tier.address_changed(NOW_S, name, f"http://{name}:1", True)
    return tier


def arrive(tier: Tier, model: str = "m") -> Exchange:
    action = tier.arrived(NOW_S, Arrival("id", model, 400))
    assert isinstance(action, Forward), action
    return action.exchange


def answer(tier: Tier, exchange: Exchange, status: int = 200) -> None:
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S + 0.5, exchange, 200)
    tier.ended(NOW_S + 1.0, exchange, status, Usage(100, 50), 0.0)


def test_the_cells_of_a_root() -> None:
    ap, eu, us = snapshot.cells(root(), NOW_S + 0.25)
    assert us == CellRow(
        cell="us",
        endpoint="m",
        up=True,
        routable=True,
        k=2.0,
        rif=4.0,
        load=2.0,
        in_flight=0,
        queued_s=0.0,
        share=None,
        rtt_s=0.002,
        cost=2.0,
        unit="requests/server",
        latency_s=CURVE.latency_s(2.0),
        error_rate=None,
        age_s=0.25,
    )
    assert eu == CellRow(
        cell="eu",
        endpoint="m",
        up=True,
        routable=True,
        k=4.0,
        rif=8.0,
        load=2.0,
        in_flight=0,
        queued_s=0.5,
        share=None,
        rtt_s=0.096,
        cost=2.0,
        unit="requests/server",
        latency_s=None,
        error_rate=1.0 / 8.0,
        age_s=0.25,
    )
    assert ap == CellRow(cell="ap", endpoint="", up=False, routable=False, k=0.0, rif=0.0, load=0.0, in_flight=0), (
        "it never reported, and just that has to be seen"
    )


def test_a_cell_that_went_away_says_since_when_it_has_been_silent() -> None:
    tier = root()
    tier.address_changed(NOW_S, "us", "http://us:1", False)
    row = next(row for row in snapshot.cells(tier, NOW_S + 60.0) if row.cell == "us")
    assert (row.endpoint, row.up, row.routable, row.k, row.cost, row.latency_s) == ("m", False, False, 0.0, None, None)
    assert row.age_s == 60.0


def test_a_root_shows_what_it_has_sent_and_its_share() -> None:
    tier = root()
    first, second = arrive(tier), arrive(tier)
    names = {exchange.candidate.target.name for exchange in (first, second) if exchange.candidate}
    assert names == {"us", "eu"}, "the loads tie, and the first request breaks the tie"
    rows = {row.cell: row for row in snapshot.cells(tier, NOW_S) if row.endpoint}
    assert {name: rows[name].in_flight for name in rows} == {"us": 1, "eu": 1}
    assert (rows["us"].rif, rows["eu"].rif) == (5.0, 9.0), "what is on the way counts"
    answer(tier, first)
    answer(tier, second)
    rows = {row.cell: row for row in snapshot.cells(tier, NOW_S + 1.0) if row.endpoint}
    assert {name: rows[name].share for name in rows} == {"us": 0.5, "eu": 0.5}


def test_an_endpoint_says_what_keeps_its_cost_from_being_used() -> None:
    (row,) = snapshot.endpoints(root())
    assert row == EndpointRow(
        endpoint="m",
        policy="auto/auto",
        configured_policy="auto/auto",
        overridden=False,
        cost="rif",
        unit="requests/server",
        why="gated once eu has a latency curve",
        standing="discrete: a request takes 16 x the round trip",
        routable=2,
        candidates=2,
        in_flight=0,
        waiting=0,
        panic=False,
        tokens_per_byte=0.25,
        output_tokens=128.0,
    )


def test_a_switched_policy_shows_beside_the_configured_one_until_it_is_reverted() -> None:
    tier = root()
    tier.policy_set(NOW_S, "m", "power-of-d/rif")
    (row,) = snapshot.endpoints(tier)
    assert (row.policy, row.configured_policy, row.overridden, row.why) == (
        "power-of-d/rif",
        "auto/auto",
        True,
        "",
    )
    tier.policy_set(NOW_S, "m", "")
    (row,) = snapshot.endpoints(tier)
    assert (row.policy, row.overridden) == ("auto/auto", False)


def test_the_servers_of_a_leaf() -> None:
    tier = leaf()
    answer(tier, arrive(tier, "other"), status=500)
    arrive(tier, "other")
    a, b, c = snapshot.servers(tier, NOW_S + 1.0)
    assert a == ServerRow(
        cell="eu",
        server="a",
        address="http://a:1",
        up=True,
        state="up",
        models=("m",),
        in_flight=0,
        slots=8,
        weight=2.0,
        work_s=0.0,
        requests=0.0,
        error_rate=None,
    )
    assert (b.in_flight, b.requests, b.error_rate) == (1, 1.0, 1.0)
    assert b.work_s > 0.0
    assert (c.up, c.state, c.models, c.slots, c.weight) == (False, "down", (), 0, 1.0)


def test_a_root_shows_the_curves_reported_to_it_and_a_reason_for_the_others() -> None:
    eu, us = snapshot.curves(root(), NOW_S)
    assert us == CurveRow(
        cell="us",
        endpoint="m",
        curve=CURVE,
        load=2.0,
        latency_s=CURVE.latency_s(2.0),
        gradient_s=CURVE.gradient_s(2.0),
        why="",
    )
    assert (eu.curve, eu.latency_s, eu.gradient_s, eu.why) == (None, None, None, "the cell has reported no curve yet")


def test_a_leaf_shows_its_own_curve_with_its_samples() -> None:
    tier = leaf()
    m, other = snapshot.curves(tier, NOW_S)
    assert (m.cell, m.endpoint, m.why, m.bins) == ("eu", "m", "no request has ended yet", [])
    answer(tier, arrive(tier))
    m, other = snapshot.curves(tier, NOW_S + 1.0)
    assert [(b.n, b.latency_s) for b in m.bins] == [(0.0, 1.0)]
    arrive(tier)
    m, other = snapshot.curves(tier, NOW_S + 1.0)
    assert m.load == pytest.approx(1 / 3), "one request on servers worth three"
    assert other.bins == []


def test_looking_changes_no_decision() -> None:
    """Two tiers with the same events; one is looked at all the time."""
    seen, unseen = root(), root()
    chosen: dict[int, list[str]] = {0: [], 1: []}
    for step in range(40):
        snapshot.cells(seen, NOW_S)
        snapshot.endpoints(seen)
        snapshot.curves(seen, NOW_S)
        for number, tier in enumerate((seen, unseen)):
            exchange = arrive(tier)
            chosen[number].append(exchange.address)
            if step % 3 == 0:
                tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, False, False, 0.0)
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 3
