"""A leaf's own requests: when it makes them, what they may do, what they count for, and never more than that."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from dlbctl.core.errors import ConfigError
from dlbctl.core.estimator import Estimator
from dlbctl.core.events import Arrival, Explore, Failure, Forward, Reject, RequestAction, Usage
from dlbctl.core.exchange import Exchange, Phase
from dlbctl.core.exploration import OUTPUT_TOKENS_MAX, PROMPT_TOKENS_MAX, STARVED_RPS, WANTED_RPS
from dlbctl.core.health import Standing
from dlbctl.core.news import FRESH_S, EndpointNews, News
from dlbctl.core.settings import (
    EndpointSettings,
    ExplorationSettings,
    HealthSettings,
    Limits,
    QueueSettings,
    RetrySettings,
    TargetSettings,
    TierSettings,
)
from dlbctl.core.tier import Tier

USAGE = Usage(200, 40)


def leaf(*, probe_rps: float = 0.5, servers: int = 2, slots: int = 0, limit: int = 0, **more: Any) -> Tier:
    """A leaf of some servers of `m`, all of which answer."""
    targets = tuple(TargetSettings(f"s{n}", (f"http://s{n}:1",), ("m",), slots=slots) for n in range(servers))
    endpoint = EndpointSettings(
        name="m", limits=Limits(max_in_flight=limit), exploration=ExplorationSettings(probe_rps=probe_rps)
    )
    tier = Tier(TierSettings("leaf", "here", targets, (endpoint,), **more), "b00t")
    for target in targets:
        tier.address_changed(0.0, target.name, target.addresses[0], True)
    return tier


def wanted(tier: Tier, now_s: float, rps: float = 3.0) -> None:
    tier.pinged(now_s, "us", 0.02, News("r00t", {"m": EndpointNews(rps)}))


def served(action: RequestAction) -> Exchange:
    assert isinstance(action, Forward), action
    return action.exchange


def user(tier: Tier, now_s: float, took_s: float = 1.0, usage: Usage | None = USAGE) -> None:
    """A user's request that goes well."""
    exchange = served(tier.arrived(now_s, Arrival("u", "m")))
    tier.attempt_started(now_s, exchange)
    tier.ended(now_s + took_s, exchange, 200, usage, 0.0)


def made(explore: Explore) -> Arrival:
    return Arrival("p", explore.endpoint, 0, float(explore.prompt_tokens), explore.output_tokens, background=True)


def tried(tier: Tier, now_s: float) -> Exchange:
    """A request of its own, on its way."""
    exchange = served(tier.arrived(now_s, made(Explore("m", 200, 40))))
    tier.attempt_started(now_s, exchange)
    return exchange


def asked(tier: Tier, since_s: float, until_s: float) -> list[tuple[float, Explore]]:
    """What the timer asks for, and when; every request takes a tenth of a second, and roots go on telling."""
    found, now_s, told_s = [], since_s, since_s
    while now_s < until_s:
        if now_s >= told_s:
            wanted(tier, now_s)
            told_s += 1.0
        timer = tier.timer_fired(now_s)
        for explore in timer.explore:
            found.append((now_s, explore))
            tier.ended(now_s + 0.1, tried(tier, now_s), 200, USAGE, 0.0)
        assert timer.at_s > now_s
        now_s = timer.at_s
    return found


# -- when ----------------------------------------------------------------------------------------------------


def test_what_is_asked_for_elsewhere_and_not_here_is_tried_now_and_then() -> None:
    tier = leaf()
    user(tier, 0.0)
    found = asked(tier, 30.0, 60.0)
    assert [now_s for now_s, _ in found] == pytest.approx([30.0 + 2.0 * n for n in range(15)], abs=0.01)
    assert {explore for _, explore in found} == {Explore("m", 200, round(40.0))}
    assert tier.endpoints["m"].explored == 15


@pytest.mark.parametrize("rate", [0.1, 0.37, 1.0])
def test_never_more_often_than_the_file_allows(rate: float) -> None:
    tier = leaf(probe_rps=rate)
    user(tier, 0.0)
    times = [now_s for now_s, _ in asked(tier, 30.0, 90.0)]
    assert min(later - sooner for sooner, later in pairwise(times)) >= 1.0 / rate - 1e-9
    assert len(times) == pytest.approx(60.0 * rate, abs=2)


def test_not_when_it_is_turned_off() -> None:
    tier = leaf(probe_rps=0.0)
    user(tier, 0.0)
    assert asked(tier, 30.0, 60.0) == []


def test_not_before_a_user_has_shown_what_requests_are_like() -> None:
    assert asked(leaf(), 30.0, 60.0) == []


def test_not_when_nobody_wants_it_or_nobody_says_so_any_more() -> None:
    tier = leaf()
    user(tier, 0.0)
    assert not tier.timer_fired(30.0).explore
    wanted(tier, 31.0, WANTED_RPS - 0.01)
    assert not tier.timer_fired(31.0).explore
    wanted(tier, 32.0, WANTED_RPS)
    assert not tier.timer_fired(32.1 + FRESH_S).explore
    assert tier.timer_fired(32.0 + FRESH_S).explore


def test_not_while_something_of_it_is_under_way() -> None:
    tier = leaf()
    user(tier, 0.0)
    exchange = served(tier.arrived(1.0, Arrival("u", "m")))
    wanted(tier, 60.0)
    assert not tier.timer_fired(60.0).explore
    tier.client_gone(60.5, exchange)
    assert tier.timer_fired(60.5).explore


def test_not_while_users_come() -> None:
    """A fifth of a request a second is enough to learn from."""
    tier = leaf()
    for number in range(60):
        user(tier, number / (2.0 * STARVED_RPS), 0.1)
    now_s = 60.0 / (2.0 * STARVED_RPS)
    wanted(tier, now_s)
    assert not tier.timer_fired(now_s).explore
    assert len(asked(tier, now_s, now_s + 60.0)) > 20


def test_a_request_is_no_larger_than_it_need_be() -> None:
    tier = leaf()
    user(tier, 0.0, usage=Usage(30_000, 900, 10_000))
    ((_, explore),) = asked(tier, 30.0, 31.0)
    assert explore == Explore("m", int(PROMPT_TOKENS_MAX), int(OUTPUT_TOKENS_MAX))


def test_the_usual_is_the_mean_of_what_servers_counted_less_what_they_had_cached() -> None:
    tier = leaf()
    for tokens in (100, 300):
        user(tier, 0.0, usage=Usage(tokens, 20, 50))
    user(tier, 0.0, usage=Usage(200, 50, 50))
    assert asked(tier, 30.0, 31.0)[0][1] == Explore("m", 150, 30)


def test_a_server_that_refuses_what_is_asked_of_it_is_not_asked_again_until_a_user_was_served() -> None:
    tier = leaf()
    user(tier, 0.0)
    tier.ended(30.0, tried(tier, 30.0), 401, None, 0.0)
    assert asked(tier, 31.0, 60.0) == []
    user(tier, 60.0)
    assert asked(tier, 90.0, 95.0)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_users_do_the_bounds_hold(seed: int) -> None:
    """Chance arrivals, from none to several a second, of all lengths, and roots that fall silent and come back."""
    rng, tier, now_s = Random(seed), leaf(servers=1, slots=3), 0.0
    open_: list[Exchange] = []
    times: list[float] = []
    endpoint = tier.endpoints["m"]
    for _ in range(4000):
        now_s += rng.expovariate(rng.choice([0.3, 5.0]))
        if rng.random() < 0.5:
            wanted(tier, now_s, rng.choice([0.0, 0.4, 2.0]))
        if rng.random() < 0.2:
            action = tier.arrived(now_s, Arrival("u", "m"))
            open_ += [action.exchange] if isinstance(action, Forward) else []
        for exchange in [one for one in open_ if rng.random() < 0.5]:
            open_.remove(exchange)
            exchange.move(Phase.WAITING)
            tier.ended(now_s, exchange, rng.choice([200, 200, 500]), USAGE, 0.0)
        for explore in tier.timer_fired(now_s).explore:
            assert endpoint.in_flight == 0
            assert endpoint.demand.rate(now_s) < STARVED_RPS
            assert tier.heard.rate_rps(now_s, "m") >= WANTED_RPS
            times.append(now_s)
            open_.append(served(tier.arrived(now_s, made(explore))))
    assert len(times) > 100, "a walk that tries little proves little"
    assert min(later - sooner for sooner, later in pairwise(times)) >= 2.0


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"endpoint\[0\]\.exploration\.probe_rps"):
        EndpointSettings(name="m", exploration=ExplorationSettings(probe_rps=rate)).check("endpoint[0]")


# -- what it may do, and counts for --------------------------------------------------------------------------


def test_it_is_nobodys_demand_and_counts_like_any_other_where_it_is() -> None:
    tier = leaf()
    exchange = tried(tier, 5.0)
    endpoint = tier.endpoints["m"]
    state = tier.report(5.0).endpoints["m"]
    assert (state.rif, state.received, state.arrivals) == (1, {}, {})
    assert endpoint.demand.read(5.0) == 0.0
    tier.ended(6.0, exchange, 200, USAGE, 0.0)
    assert tier.report(6.0).endpoints["m"].requests == 1.0
    assert (endpoint.in_flight, tier.exchanges) == (0, {})
    assert (endpoint.output_tokens.value, endpoint.tokens_per_byte.value) == (128.0, 0.25)


@pytest.mark.parametrize("failure", [Failure.CLOSED, Failure.BUSY, Failure.REFUSED, Failure.ERROR])
def test_one_that_fails_is_not_tried_elsewhere_and_counts_as_an_error(failure: Failure) -> None:
    """Else errors would stay what they were at a cell that is sent nothing for its errors."""
    tier = leaf(retries=RetrySettings(attempts=3, after_sent=True))
    action = tier.attempt_failed(6.0, tried(tier, 5.0), failure, True, False, False, 0.0)
    assert isinstance(action, Reject)
    state = tier.report(6.0).endpoints["m"]
    assert (state.errors, state.requests, tier.exchanges) == (1.0, 1.0, {})
    assert (tier.endpoints["m"].retried, tier.endpoints["m"].refused) == (0, 0)


def test_a_connection_that_the_server_had_closed_is_made_anew() -> None:
    tier = leaf()
    action = tier.attempt_failed(6.0, tried(tier, 5.0), Failure.CLOSED, True, False, True, 0.0)
    assert isinstance(action, Forward)
    assert action.fresh


def test_it_leaves_room_for_a_user_at_the_server() -> None:
    tier = leaf(servers=1, slots=2, queue=QueueSettings(size=5))
    first = served(tier.arrived(1.0, Arrival("u", "m")))
    assert isinstance(tier.arrived(1.0, made(Explore("m", 1, 1))), Reject)  # and does not wait
    tier.client_gone(1.0, first)
    tried(tier, 2.0)
    assert isinstance(tier.arrived(2.0, Arrival("u", "m")), Forward)
    assert tier.endpoints["m"].refused == 0


def test_it_leaves_room_for_a_user_within_the_limits_of_endpoint_and_router() -> None:
    for tier in (leaf(limit=1), leaf(max_in_flight=1)):
        assert isinstance(tier.arrived(1.0, made(Explore("m", 1, 1))), Reject)
        assert isinstance(tier.arrived(1.0, Arrival("u", "m")), Forward)
    for tier in (leaf(limit=2), leaf(max_in_flight=2)):
        tried(tier, 1.0)
        assert isinstance(tier.arrived(1.0, Arrival("u", "m")), Forward)


def test_a_server_on_trial_is_left_to_users_and_one_among_ill_ones_is_tried() -> None:
    tier = leaf(health=HealthSettings(failures=1, eject_s=1.0))
    ill = tried(tier, 1.0)
    server = ill.candidate.target if ill.candidate else None
    assert server is not None
    tier.attempt_failed(1.0, ill, Failure.ERROR, True, False, False, 0.0)
    tier.timer_fired(2.5)
    assert server.health.standing is Standing.TRIAL
    for _ in range(20):
        exchange = tried(tier, 3.0)
        assert exchange.address not in server.addresses
        tier.client_gone(3.0, exchange)
    assert server.health.trial is None


def test_where_all_are_ejected_they_are_tried_as_users_would() -> None:
    tier = leaf(health=HealthSettings(failures=1, max_ejected=1.0))
    for _ in range(2):
        tier.attempt_failed(1.0, tried(tier, 1.0), Failure.ERROR, True, False, False, 0.0)
    assert tier.endpoints["m"].panic
    tried(tier, 2.0)


# -- what is learned from it ---------------------------------------------------------------------------------


def latencies_s(estimator: Estimator, now_s: float) -> list[float]:
    return [one.latency_s for one in estimator.bins(now_s)]


def test_a_sample_is_worth_what_a_users_request_would_have_taken() -> None:
    """By the work in each, a decode token being worth ninety of the prompt; to be exact, it is at an idle server."""
    tier = leaf()
    user(tier, 0.0, usage=Usage(9000, 200, 0))
    tier.estimators["m"] = Estimator(Random(1))
    tier.ended(31.0, tried(tier, 30.0), 200, Usage(450, 30), 0.0)
    assert latencies_s(tier.estimators["m"], 31.0) == pytest.approx([(9000 + 90 * 200) / (450 + 90 * 30)])


def test_without_the_servers_count_the_sizes_asked_for_are_believed() -> None:
    tier = leaf()
    user(tier, 0.0, usage=Usage(400, 80))
    tier.estimators["m"] = Estimator(Random(1))
    tier.ended(31.0, tried(tier, 30.0), 200, None, 0.0)
    assert latencies_s(tier.estimators["m"], 31.0) == pytest.approx([2.0])
