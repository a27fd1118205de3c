"""Scripts of what befalls servers, and whether they get requests afterwards."""

from __future__ import annotations

import pytest

from dlbctl.core import snapshot
from dlbctl.core.events import Arrival, Failure, Forward, Probe, Reject
from dlbctl.core.exchange import Exchange
from dlbctl.core.health import FIRST_SHARE, Standing
from dlbctl.core.settings import HealthSettings
from dlbctl.core.tier import Tier
from tests.core.test_tier import NOW_S, arrive, leaf, refused, server

HEALTH = HealthSettings(fall=3, rise=2, failures=3, eject_s=10.0, eject_max_s=15.0, slow_start_s=30.0)


def pair() -> Tier:
    return leaf(server("a"), server("b"), health=HEALTH)


def finish(tier: Tier, exchange: Exchange, status: int, now_s: float = NOW_S) -> None:
    tier.attempt_started(now_s, exchange)
    tier.first_byte(now_s, exchange, status)
    tier.ended(now_s, exchange, status, None, 0.0)


def fill(tier: Tier, count: int, now_s: float = NOW_S) -> list[Exchange]:
    actions = [tier.arrived(now_s, Arrival("id", "m", 400)) for _ in range(count)]
    return [action.exchange for action in actions if isinstance(action, Forward)]


def to(tier: Tier, name: str, now_s: float = NOW_S) -> Exchange:
    """A new request at that server; those that went elsewhere first are given up."""
    others: list[Exchange] = []
    for _ in range(100):
        (exchange,) = fill(tier, 1, now_s)
        if exchange.address == f"http://{name}:1":
            for other in others:
                tier.client_gone(now_s, other)
            return exchange
        others.append(exchange)
    raise AssertionError(f"nothing is sent to {name}")


def places(tier: Tier, now_s: float = NOW_S, count: int = 24) -> set[str]:
    """Which servers new requests go to, with nothing left behind."""
    exchanges = fill(tier, count, now_s)
    found = {exchange.address[7:8] for exchange in exchanges}
    for exchange in exchanges:
        tier.client_gone(now_s, exchange)
    return found


def eject(tier: Tier, name: str, now_s: float = NOW_S) -> None:
    for _ in range(HEALTH.failures):
        finish(tier, to(tier, name, now_s), 500, now_s)


# -- passive -------------------------------------------------------------------------------------------------


def test_failures_in_a_row_eject_and_one_success_between_them_does_not() -> None:
    tier = pair()
    for status in (500, 500, 200, 500, 500):
        finish(tier, to(tier, "a"), status)
    assert places(tier) == {"a", "b"}
    finish(tier, to(tier, "a"), 502)
    assert tier.targets["a"].state == "ejected"
    assert places(tier) == {"b"}
    assert tier.report(NOW_S).endpoints["m"].k == 1.0


@pytest.mark.parametrize("status", [400, 404, 413, 429, 503])
def test_what_clients_do_wrong_and_what_a_busy_server_says_is_no_ill_health(status: int) -> None:
    """Cases 20 and 21."""
    tier = pair()
    for step in range(20):
        finish(tier, to(tier, "a", NOW_S + 100.0 * step), status, NOW_S + 100.0 * step)
    assert tier.targets["a"].health.standing is Standing.IN


@pytest.mark.parametrize("failure", [Failure.CLOSED, Failure.PROTOCOL, Failure.FIRST_BYTE_TIMEOUT])
def test_attempts_that_break_eject(failure: Failure) -> None:
    tier = pair()
    for _ in range(HEALTH.failures):
        exchange = to(tier, "a")
        tier.attempt_started(NOW_S, exchange)
        refused(tier.attempt_failed(NOW_S, exchange, failure, True, False, False, 0.0))
    assert places(tier) == {"b"}


def test_an_ejected_server_is_tried_with_one_request_and_comes_back_gently() -> None:
    """Case 22."""
    tier = pair()
    eject(tier, "a")
    tier.timer_fired(NOW_S + 9.9)
    assert places(tier, NOW_S + 9.9) == {"b"}
    tier.timer_fired(NOW_S + 10.0)
    now_s = NOW_S + 10.0
    trial = to(tier, "a", now_s)
    assert tier.targets["a"].state == "trial"
    assert places(tier, now_s) == {"b"}, "one at a time"
    finish(tier, trial, 200, now_s)
    assert tier.targets["a"].state == "slow start"
    assert tier.targets["a"].candidates[0].weight == FIRST_SHARE
    tier.timer_fired(now_s + 15.0)
    assert tier.targets["a"].candidates[0].weight == 0.5
    tier.timer_fired(now_s + 30.0)
    assert tier.targets["a"].state == "up"
    assert tier.targets["a"].candidates[0].weight == 1.0


def test_a_first_byte_is_enough_for_a_server_on_trial_but_not_that_of_an_error() -> None:
    tier = pair()
    eject(tier, "a")
    tier.timer_fired(NOW_S + 10.0)
    trial = to(tier, "a", NOW_S + 10.0)
    tier.attempt_started(NOW_S + 10.0, trial)
    tier.first_byte(NOW_S + 10.0, trial, 500)
    assert tier.targets["a"].state == "trial"
    tier.ended(NOW_S + 10.0, trial, 500, None, 0.0)
    assert tier.targets["a"].health.until_s == NOW_S + 10.0 + 15.0, "twice as long, but not longer than the most"
    tier.timer_fired(NOW_S + 25.0)
    trial = to(tier, "a", NOW_S + 25.0)
    tier.attempt_started(NOW_S + 25.0, trial)
    tier.first_byte(NOW_S + 25.0, trial, 200)
    assert tier.targets["a"].health.standing is Standing.IN


def test_a_trial_whose_client_leaves_is_followed_by_another() -> None:
    tier = pair()
    eject(tier, "a")
    tier.timer_fired(NOW_S + 10.0)
    tier.client_gone(NOW_S + 10.0, to(tier, "a", NOW_S + 10.0))
    to(tier, "a", NOW_S + 10.0)


def test_a_trial_that_fails_in_panic_is_followed_by_another() -> None:
    """`m` is served by `a` alone, so it is in panic while `a` is out; its requests are trials already."""
    tier = leaf(server("a"), server("b", models=("other",)), health=HEALTH)
    for _ in range(HEALTH.failures):
        finish(tier, arrive(tier), 500)
    assert tier.targets["a"].state == "ejected"
    finish(tier, arrive(tier), 500)
    assert tier.targets["a"].health.trial is None
    tier.timer_fired(NOW_S + 10.0)
    finish(tier, to(tier, "a", NOW_S + 10.0), 200, NOW_S + 10.0)
    assert tier.targets["a"].state == "slow start"


def test_a_trial_that_fails_where_no_more_may_be_ejected_is_followed_by_another() -> None:
    tier = pair()
    eject(tier, "a")
    tier.timer_fired(NOW_S + 10.0)
    tier.targets_changed([server("a")])
    finish(tier, to(tier, "a", NOW_S + 10.0), 500, NOW_S + 10.0)
    assert tier.targets["a"].state == "trial"
    finish(tier, to(tier, "a", NOW_S + 10.0), 200, NOW_S + 10.0)
    assert tier.targets["a"].state == "slow start"


def test_an_old_request_of_an_ejected_server_decides_nothing() -> None:
    tier = pair()
    old = to(tier, "a")
    eject(tier, "a")
    finish(tier, old, 200)
    assert tier.targets["a"].state == "ejected"


def test_no_more_servers_are_ejected_than_may_be() -> None:
    tier = leaf(*(server(name) for name in "abcd"), health=HEALTH)
    for name in "abc":
        eject(tier, name)
    assert [tier.targets[name].state for name in "abcd"] == ["ejected", "ejected", "up", "up"]


def test_an_only_server_is_never_ejected() -> None:
    tier = leaf(server("a"), health=HEALTH)
    eject(tier, "a")
    eject(tier, "a")
    assert places(tier) == {"a"}


def test_when_all_that_answer_are_ejected_they_are_used_nevertheless() -> None:
    """Case 32: panic."""
    tier = pair()
    eject(tier, "a")
    tier.address_changed(NOW_S, "b", "http://b:1", False)
    (endpoint,) = tier.endpoints.values()
    assert snapshot.endpoints(tier)[0].panic
    assert places(tier) == {"a"}
    assert len(fill(tier, 5)) == 5
    tier.address_changed(NOW_S, "b", "http://b:1", True)
    assert not endpoint.panic
    assert places(tier) == {"b"}


# -- active --------------------------------------------------------------------------------------------------


def test_probes_take_thresholds_and_a_first_answer_none() -> None:
    tier = leaf(server("a"), health=HEALTH, up=False)

    def probe(result: Probe) -> str:
        tier.probed(NOW_S, "a", "http://a:1", result)
        return tier.targets["a"].state

    assert probe(Probe.OK) == "up"
    assert [probe(Probe.FAILED) for _ in range(3)] == ["up", "up", "down"]
    assert [probe(Probe.OK) for _ in range(2)] == ["down", "slow start"]
    assert probe(Probe.REFUSED) == "down"
    assert probe(Probe.LOADING) == "loading"
    assert [probe(Probe.OK), probe(Probe.FAILED), probe(Probe.OK), probe(Probe.OK)][-2:] == ["down", "slow start"]


def test_a_server_that_refused_a_request_takes_as_many_probes_as_any_that_was_down() -> None:
    tier = leaf(server("a"), health=HEALTH)
    for _ in range(HEALTH.rise):
        tier.probed(NOW_S, "a", "http://a:1", Probe.OK)
    refused(tier.attempt_failed(NOW_S, arrive(tier), Failure.REFUSED, False, False, False, 0.0))
    states = []
    for _ in range(HEALTH.rise):
        tier.probed(NOW_S, "a", "http://a:1", Probe.OK)
        states.append(tier.targets["a"].state)
    assert states == ["down", "slow start"]


def test_a_busy_server_that_misses_probes_but_serves_is_not_down() -> None:
    """Case 22."""
    tier = leaf(server("a"), health=HEALTH)
    for _ in range(10):
        tier.probed(NOW_S, "a", "http://a:1", Probe.FAILED)
        finish(tier, arrive(tier), 200)
    assert tier.targets["a"].state == "up"


def test_a_server_that_says_it_is_loading_gets_nothing_until_its_probes_are_answered() -> None:
    tier = leaf(server("a"), server("b"), health=HEALTH)
    exchange = to(tier, "a")
    tier.attempt_started(NOW_S, exchange)
    action = tier.attempt_failed(NOW_S, exchange, Failure.LOADING, True, False, False, 0.0)
    assert isinstance(action, Forward)
    assert action.address == "http://b:1"
    assert places(tier) == {"b"}


def test_a_probe_of_a_removed_server_is_dropped() -> None:
    tier = pair()
    tier.targets_changed([server("b")])
    tier.probed(NOW_S, "a", "http://a:1", Probe.OK)
    assert "a" not in tier.targets


# -- busy ----------------------------------------------------------------------------------------------------


def test_a_server_that_says_it_is_busy_is_no_sink() -> None:
    """Case 31: it answers 503 in no time, so its load is always the least."""
    tier = pair()
    finish(tier, to(tier, "a"), 503)
    assert places(tier) == {"b"}
    now_s = NOW_S + 0.11
    finish(tier, to(tier, "a", now_s), 503, now_s)
    assert places(tier, now_s + 0.15) == {"b"}, "twice as long the second time"
    assert places(tier, now_s + 0.21) == {"a", "b"}


def test_requests_sent_together_are_declined_together_and_count_once() -> None:
    tier = pair()
    together = [to(tier, "a") for _ in range(8)]
    for exchange in together:
        finish(tier, exchange, 429)
    assert places(tier, NOW_S + 0.11) == {"a", "b"}


def test_retry_after_is_honoured() -> None:
    tier = pair()
    exchange = to(tier, "a")
    tier.attempt_started(NOW_S, exchange)
    tier.attempt_failed(NOW_S, exchange, Failure.BUSY, True, False, False, 7.0)
    assert places(tier, NOW_S + 6.9) == {"b"}
    assert places(tier, NOW_S + 7.0) == {"a", "b"}


def test_when_everybody_is_busy_the_answer_is_no_at_once_with_the_time_to_come_back() -> None:
    """Case 26."""
    tier = leaf(server("a"), server("b"), health=HEALTH)
    exchange = to(tier, "a")
    tier.attempt_started(NOW_S, exchange)
    action = tier.attempt_failed(NOW_S, exchange, Failure.BUSY, True, False, False, 3.0)
    assert isinstance(action, Forward)
    tier.attempt_started(NOW_S, exchange)
    last = tier.attempt_failed(NOW_S, exchange, Failure.BUSY, True, False, False, 5.0)
    assert isinstance(last, Reject)
    assert (last.code, last.retry_after_s) == ("upstream_busy", 5)
    again = refused(tier.arrived(NOW_S + 0.5, Arrival("id", "m")))
    assert (again.status, again.code, again.retry_after_s) == (503, "all_servers_busy", 3)
