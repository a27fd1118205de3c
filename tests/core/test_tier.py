"""Scripts of events and the actions they must bring, on a leaf of a few servers (and a root where it matters)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dlbctl.core.endpoint import FIRST_OUTPUT_TOKENS, FIRST_TOKENS_PER_BYTE, LEARNING_WEIGHT
from dlbctl.core.errors import ConfigError
from dlbctl.core.events import (
    AdminState,
    Arrival,
    Drift,
    EndpointState,
    Failure,
    Forward,
    Reject,
    RequestAction,
    State,
    Usage,
)
from dlbctl.core.exchange import Exchange, Phase
from dlbctl.core.health import Standing
from dlbctl.core.samples import InFlight
from dlbctl.core.settings import (
    EndpointSettings,
    HealthSettings,
    Limits,
    QueueSettings,
    RetrySettings,
    TargetSettings,
    TierSettings,
    Timeouts,
)
from dlbctl.core.tier import FAILURES, IN_FLIGHT_LOOKED_AT, Tier

NOW_S = 1000.0
DEFAULT_RETRIES = RetrySettings()
ATTEMPTS = DEFAULT_RETRIES.attempts
DEFAULT_HEALTH = HealthSettings()
NO_QUEUE = QueueSettings(size=0)


def server(name: str, *, models: tuple[str, ...] = ("m",), weight: float = 1.0, slots: int = 0) -> TargetSettings:
    return TargetSettings(name, (f"http://{name}:1",), models, weight, slots)


def leaf(
    *targets: TargetSettings,
    endpoints: tuple[EndpointSettings, ...] = (),
    up: bool = True,
    queue: QueueSettings = NO_QUEUE,
    health: HealthSettings = DEFAULT_HEALTH,
    retries: RetrySettings = DEFAULT_RETRIES,
    max_in_flight: int = 0,
) -> Tier:
    settings = TierSettings(
        "leaf",
        "here",
        targets,
        endpoints,
        seed=3,
        max_in_flight=max_in_flight,
        retries=retries,
        health=health,
        queue=queue,
    )
    tier = Tier(settings, "b00t")
    if up:
        bring_up(tier)
    return tier


def bring_up(tier: Tier) -> None:
    for target in tier.targets.values():
        for address in target.addresses:
            tier.address_changed(NOW_S, target.name, address, True)


def cells(*names: str, leaves: int = 1, models: tuple[str, ...] = ("m",)) -> Tier:
    """A root whose cells have all reported."""
    targets = [TargetSettings(name, tuple(f"http://{name}:{n}" for n in range(leaves))) for name in names]
    tier = Tier(TierSettings("root", "here", tuple(targets), (EndpointSettings("m"),), seed=3), "b00t")
    for target in targets:
        for address in target.addresses:
            states = {model: EndpointState(k=2.0) for model in models}
            tier.state_reported(NOW_S, target.name, address, State(endpoints=states), 0.01)
    return tier


def arrive(tier: Tier, model: str = "m") -> Exchange:
    action = tier.arrived(NOW_S, Arrival("id", model, 400))
    assert isinstance(action, Forward), action
    return action.exchange


def refused(action: RequestAction) -> Reject:
    assert isinstance(action, Reject), action
    return action


def moved(action: RequestAction) -> Forward:
    assert isinstance(action, Forward), action
    return action


def in_flight(tier: Tier) -> dict[str, int]:
    return {name: target.in_flight for name, target in tier.targets.items()}


# -- arrivals ----------------------------------------------------------------------------------------------


def test_a_model_nobody_serves_is_404_and_counts_nothing() -> None:
    tier = leaf(server("a"))
    action = refused(tier.arrived(NOW_S, Arrival("id", "other")))
    assert (action.status, action.code) == (404, "unknown_model")
    assert not tier.exchanges


def test_a_root_that_has_not_heard_yet_that_a_model_is_gone_may_ask_another_cell() -> None:
    """Case 14. A 404 would be the client's answer, though another cell serves it."""
    tier = leaf(server("a", models=("m", "n")))
    tier.targets_changed([server("a", models=("n",))])
    action = refused(tier.arrived(NOW_S, Arrival("id", "m", root="r00t")))
    assert (action.status, action.code) == (503, "no_routable_server")
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).code == "unknown_model"


def test_a_leaf_without_a_server_is_not_asked_while_another_of_its_cell_has_one() -> None:
    """Its servers are drained, or it has only just begun to look for them: the cell is not busy for that."""
    tier = cells("eu", leaves=2)
    for nothing in ({"m": EndpointState(k=0.0)}, {}):
        tier.state_reported(NOW_S, "eu", "http://eu:0", State(endpoints=nothing), 0.01)
        tier.address_changed(NOW_S, "eu", "http://eu:0", False)
        tier.state_reported(NOW_S, "eu", "http://eu:0", State(endpoints=nothing), 0.01)
        assert {arrive(tier).address for _ in range(4)} == {"http://eu:1"}
    tier.admin_set(NOW_S, "eu", "http://eu:1", AdminState.DRAIN)
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).code == "no_routable_cell"
    tier.state_reported(NOW_S, "eu", "http://eu:0", State(endpoints={"m": EndpointState(k=1.0)}), 0.01)
    assert arrive(tier).address == "http://eu:0"


def test_with_every_server_down_it_is_503_with_retry_after() -> None:
    tier = leaf(server("a"), up=False)
    action = refused(tier.arrived(NOW_S, Arrival("id", "m")))
    assert (action.status, action.code, action.retry_after_s) == (503, "no_routable_server", 1)
    assert not tier.routable()


def test_an_endpoint_takes_no_more_than_its_limit() -> None:
    tier = leaf(server("a"), endpoints=(EndpointSettings("m", limits=Limits(2)),))
    first, _ = arrive(tier), arrive(tier)
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).code == "endpoint_full"
    tier.client_gone(NOW_S, first)
    arrive(tier)


def test_a_server_takes_no_more_than_its_slots_whichever_models_fill_them() -> None:
    tier = leaf(server("a", models=("m", "n"), slots=2))
    arrive(tier, "m")
    arrive(tier, "n")
    action = refused(tier.arrived(NOW_S, Arrival("id", "m")))
    assert (action.status, action.code, action.retry_after_s) == (503, "all_servers_full", 1)


def test_a_request_still_connecting_counts_in_flight() -> None:
    """Case 10."""
    tier = leaf(server("a"))
    exchange = arrive(tier)
    assert exchange.phase is Phase.CONNECTING
    assert tier.report(NOW_S).endpoints["m"].rif == 1


def test_a_target_gone_since_the_last_choice_is_not_chosen() -> None:
    """Case 14: the choice and its count are one step, so what vanished before it cannot be picked."""
    tier = leaf(server("a"), server("b"))
    tier.targets_changed([server("b")])
    assert {arrive(tier).address for _ in range(8)} == {"http://b:1"}


def test_many_simultaneous_arrivals_spread_evenly_over_idle_servers() -> None:
    """Case 8: each choice sees the counts of those before it."""
    tier = leaf(*(server(f"s{n}") for n in range(8)), endpoints=(EndpointSettings("m", "discrete/rif"),))
    for _ in range(64):
        arrive(tier)
    assert set(in_flight(tier).values()) == {8}


# -- failures and retries ----------------------------------------------------------------------------------


def test_first_attempt_fails_second_succeeds_each_counts_once() -> None:
    """Case 5."""
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    first = exchange.address
    action = moved(tier.attempt_failed(NOW_S, exchange, Failure.CONNECT_TIMEOUT, False, False, False, 0.0))
    assert action.exchange is exchange
    assert action.address != first
    assert sum(in_flight(tier).values()) == 1
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S, exchange, 200)
    tier.ended(NOW_S, exchange, 200, None, 0.0)
    assert in_flight(tier) == {"a": 0, "b": 0}


def test_a_refusing_address_is_down_for_others_at_once() -> None:
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    name = exchange.address.removeprefix("http://").removesuffix(":1")
    moved(tier.attempt_failed(NOW_S, exchange, Failure.REFUSED, False, False, False, 0.0))
    assert not tier.targets[name].up
    assert name not in {arrive(tier).address for _ in range(4)}


def test_attempts_are_bounded() -> None:
    tier = leaf(*(server(f"s{n}") for n in range(ATTEMPTS + 2)))
    exchange = arrive(tier)
    first = exchange.address
    others = [moved(tier.expired(NOW_S, exchange, False)).address for _ in range(ATTEMPTS - 1)]
    action = refused(tier.expired(NOW_S, exchange, False))
    assert (action.status, action.code) == (504, "upstream_connect_timeout")
    assert len({first, *others}) == ATTEMPTS
    assert set(in_flight(tier).values()) == {0}


@pytest.mark.parametrize("failure", list(Failure))
def test_every_failure_of_the_only_server_has_an_answer(failure: Failure) -> None:
    tier = leaf(server("a"))
    exchange = arrive(tier)
    action = refused(tier.attempt_failed(NOW_S, exchange, failure, False, False, False, 0.0))
    assert (action.status, action.code) == FAILURES[failure][:2]


def test_no_room_is_no_ill_health() -> None:
    """Case 21."""
    tier = leaf(server("a"))
    tier.attempt_failed(NOW_S, arrive(tier), Failure.NO_ROOM, False, False, False, 0.0)
    assert tier.report(NOW_S).endpoints["m"].errors == 0.0
    tier.attempt_failed(NOW_S, arrive(tier), Failure.REFUSED, False, False, False, 0.0)
    assert tier.report(NOW_S).endpoints["m"].errors == 1.0


@pytest.mark.parametrize("failure", [Failure.CLOSED, Failure.FIRST_BYTE_TIMEOUT, Failure.PROTOCOL])
def test_what_a_server_may_have_begun_to_work_on_is_not_sent_again(failure: Failure) -> None:
    """Case 28."""
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    refused(tier.attempt_failed(NOW_S, exchange, failure, True, False, False, 0.0))
    assert not tier.exchanges


def test_an_answer_cut_short_is_cancelled_not_rejected() -> None:
    tier = leaf(server("a"))
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S, exchange, 200)
    action = tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, True, False, 0.0)
    assert repr(action) == "Cancel(code='upstream_closed')"


def test_a_pooled_connection_found_closed_is_replaced_by_a_fresh_one() -> None:
    """Case 25."""
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    action = moved(tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, False, True, 0.0))
    assert action.fresh
    assert action.address == exchange.address
    tier.attempt_started(NOW_S, exchange)
    assert sum(in_flight(tier).values()) == 1


def test_a_pooled_connection_to_a_dead_address_is_replaced_by_another_server() -> None:
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    first = exchange.address
    tier.attempt_started(NOW_S, exchange)
    tier.address_changed(NOW_S, first.removeprefix("http://").removesuffix(":1"), first, False)
    action = moved(tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, False, True, 0.0))
    assert not action.fresh
    assert action.address != first


def test_a_pooled_connection_to_a_server_that_dropped_the_model_is_replaced_by_another_server() -> None:
    tier = leaf(server("a", models=()), server("b", models=()))
    for name in "ab":
        tier.models_learned(NOW_S, name, ("m",))
    exchange = arrive(tier)
    first = exchange.address
    tier.attempt_started(NOW_S, exchange)
    tier.models_learned(NOW_S, first.removeprefix("http://").removesuffix(":1"), ("other",))
    action = moved(tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, False, True, 0.0))
    assert action.address != first


def test_a_retry_passes_over_a_cell_whose_other_leaf_is_down() -> None:
    tier = cells("a", "b", leaves=2)
    exchange = arrive(tier)
    name = "a" if "//a" in exchange.address else "b"
    for address in tier.targets[name].addresses:
        if address != exchange.address:
            tier.address_changed(NOW_S, name, address, False)
    for _ in range(8):  # whichever cell the mechanism likes better
        other = arrive(tier)
        other.tried = (exchange.address,)
    action = moved(tier.expired(NOW_S, exchange, False))
    assert f"//{name}" not in action.address


def test_an_outer_tier_hears_an_inner_retry_start_again() -> None:
    """A root over a leaf of its own process: a stale pooled connection starts the same attempt twice."""
    tier = cells("a")
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S, exchange, 200)
    with pytest.raises(AssertionError, match=r"cannot become waiting"):
        tier.attempt_started(NOW_S, exchange)


# -- health and targets ------------------------------------------------------------------------------------


def test_a_target_removed_and_added_again_begins_at_zero_and_stays_above() -> None:
    """Case 6."""
    tier = leaf(server("a"))
    old = arrive(tier)
    tier.targets_changed([])
    tier.targets_changed([server("a")])
    bring_up(tier)
    new = arrive(tier)
    assert in_flight(tier) == {"a": 1}
    tier.client_gone(NOW_S, old)
    assert in_flight(tier) == {"a": 1}
    assert tier.report(NOW_S).endpoints["m"].rif == 1
    tier.client_gone(NOW_S, new)
    assert in_flight(tier) == {"a": 0}


def test_health_that_flaps_resets_no_count() -> None:
    """Case 7."""
    tier = leaf(server("a"), server("b"))
    open_exchanges = [arrive(tier) for _ in range(6)]
    before = in_flight(tier)
    for _ in range(3):
        for up in (False, True):
            tier.address_changed(NOW_S, "a", "http://a:1", up)
    assert in_flight(tier) == before
    assert tier.report(NOW_S).endpoints["m"].rif == 6
    for exchange in open_exchanges:
        tier.client_gone(NOW_S, exchange)
    assert in_flight(tier) == {"a": 0, "b": 0}


def test_a_change_that_leaves_a_target_as_it_is_keeps_it_up() -> None:
    """Case 18."""
    tier = leaf(server("a"))
    exchange = arrive(tier)
    tier.targets_changed([server("a"), server("b")])
    assert tier.targets["a"].up
    assert in_flight(tier) == {"a": 1, "b": 0}
    tier.attempt_started(NOW_S, exchange)


def test_a_server_that_gets_another_weight_and_other_models_stays_up_with_its_requests() -> None:
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    place = exchange.candidate
    tier.targets_changed([server("a", weight=2.0, models=("m", "n")), server("b", weight=2.0, models=("m", "n"))])
    assert exchange.candidate is place
    assert sum(in_flight(tier).values()) == 1
    assert (tier.models(), tier.report(NOW_S).endpoints["m"].k) == (["m", "n"], 4.0)
    tier.client_gone(NOW_S, exchange)
    assert in_flight(tier) == {"a": 0, "b": 0}


def test_a_server_that_moved_is_another_one_under_the_old_name() -> None:
    tier = leaf(server("a"))
    exchange = arrive(tier)
    tier.targets_changed([TargetSettings("a", ("http://elsewhere:1",), ("m",))])
    assert not tier.routable()
    tier.address_changed(NOW_S, "a", "http://elsewhere:1", True)
    assert in_flight(tier) == {"a": 0}
    tier.client_gone(NOW_S, exchange)
    assert in_flight(tier) == {"a": 0}


def test_a_cell_that_loses_a_leaf_and_gets_another_keeps_what_its_other_leaf_says() -> None:
    tier = Tier(TierSettings("root", "r", (TargetSettings("a", ("http://a:0", "http://a:1")),)), "boot")
    for address, rif in (("http://a:0", 3), ("http://a:1", 4)):
        state = State(endpoints={"m": EndpointState(k=2.0, rif=rif)})
        tier.state_reported(NOW_S, "a", address, state, 0.01)
    tier.targets_changed([TargetSettings("a", ("http://a:1", "http://a:2"))])
    assert {arrive(tier).address for _ in range(3)} == {"http://a:1"}
    endpoint = tier.endpoints["m"]
    endpoint.refresh()
    assert endpoint.candidates["a"].rif == 4 + 3
    assert list(tier.targets["a"].rtt_s) == ["http://a:1"]


def test_a_stale_connection_to_a_removed_leaf_is_not_made_anew() -> None:
    tier = Tier(TierSettings("root", "r", (TargetSettings("a", ("http://a:0", "http://a:1")),)), "boot")
    for address in ("http://a:0", "http://a:1"):
        tier.state_reported(NOW_S, "a", address, State(endpoints={"m": EndpointState(k=1.0)}), 0.01)
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    (kept,) = {"http://a:0", "http://a:1"} - {exchange.address}
    tier.targets_changed([TargetSettings("a", (kept,))])
    assert moved(tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, False, True, 0.0)).address == kept


def test_changed_time_limits_hold_for_endpoints_without_their_own() -> None:
    own = Timeouts(idle_s=7.0)
    tier = leaf(server("a", models=("m", "n")), endpoints=(EndpointSettings("n", timeouts=own),))
    tier.settings_changed(replace(tier.settings, timeouts=Timeouts(idle_s=1.0)))
    assert tier.timeouts(tier.endpoints["m"]) == Timeouts(idle_s=1.0)
    assert tier.timeouts(tier.endpoints["n"]) == own


def test_changed_thresholds_hold_for_servers_that_were_there_before() -> None:
    tier = leaf(server("a"), server("b"), endpoints=(EndpointSettings("m", "discrete/rif"),))
    tier.settings_changed(replace(tier.settings, health=HealthSettings(failures=1), seed=tier.settings.seed + 1))
    exchange = arrive(tier)
    assert exchange.candidate is not None
    target = exchange.candidate.target
    tier.attempt_started(NOW_S, exchange)
    tier.attempt_failed(NOW_S, exchange, Failure.CLOSED, True, False, False, 0.0)
    assert target.health.standing is Standing.OUT


def test_a_leaf_tells_k_of_the_servers_that_are_up() -> None:
    tier = leaf(server("a", weight=0.5), server("b"), server("c", models=("n",)))
    tier.address_changed(NOW_S, "b", "http://b:1", False)
    endpoints = tier.report(NOW_S).endpoints
    assert (endpoints["m"].k, endpoints["n"].k) == (0.5, 1.0)


def test_models_a_server_names_become_endpoints_and_vanish_again() -> None:
    tier = leaf(server("a", models=()))
    assert tier.models() == []
    tier.models_learned(NOW_S, "a", ("m", "n"))
    assert tier.models() == ["m", "n"]
    exchange = arrive(tier, "n")
    tier.models_learned(NOW_S, "a", ("m",))
    assert tier.models() == ["m"]
    assert refused(tier.arrived(NOW_S, Arrival("id", "n"))).status == 404
    tier.client_gone(NOW_S, exchange)
    assert tier.report(NOW_S).endpoints["m"].rif == 0


def test_a_configured_list_of_models_is_not_overruled() -> None:
    tier = leaf(server("a", models=("m",)))
    tier.models_learned(NOW_S, "a", ("other",))
    assert tier.models() == ["m"]


def test_a_configured_endpoint_without_a_server_is_503_and_removed_from_the_file_404() -> None:
    tier = leaf(server("s", models=("n",)), endpoints=(EndpointSettings("m"),))
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).status == 503
    tier.endpoints_changed([])
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).status == 404
    tier.endpoints_changed([EndpointSettings("m")])
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).status == 503


def test_while_nobody_has_said_what_is_served_a_model_is_503_not_404() -> None:
    tier = Tier(TierSettings("root", "r", (TargetSettings("a", ("http://a:0",)),)), "boot")
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).status == 503
    tier.state_reported(NOW_S, "a", "http://a:0", State(), 0.0)  # its leaf is there and its servers are loading
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).status == 503
    tier.state_reported(NOW_S, "a", "http://a:0", State(endpoints={"n": EndpointState(k=1.0)}), 0.0)
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).status == 404


def test_a_cell_that_came_back_without_a_model_is_not_asked_for_it() -> None:
    tier = cells("a", models=("m", "n"))
    tier.address_changed(NOW_S, "a", "http://a:0", False)
    tier.state_reported(NOW_S, "a", "http://a:0", State(endpoints={"m": EndpointState(k=2.0)}), 0.01)
    assert tier.models() == ["m"]


def test_a_state_line_of_a_removed_cell_is_dropped() -> None:
    tier = cells("a")
    tier.targets_changed([])
    tier.state_reported(NOW_S, "a", "http://a:0", State(endpoints={"m": EndpointState(k=2.0)}), 0.01)
    assert not tier.routable()


# -- policies ----------------------------------------------------------------------------------------------


def policy(tier: Tier) -> str:
    return str(tier.endpoints["m"].policy)


def test_a_policy_set_live_survives_changes_and_is_reverted_by_an_empty_one() -> None:
    tier = leaf(server("a"), endpoints=(EndpointSettings("m", "discrete/rif"),))
    tier.policy_set(NOW_S, "m", "power-of-d/rif")
    tier.targets_changed([server("b")])
    tier.endpoints_changed([EndpointSettings("m", "discrete/work")])
    assert policy(tier) == "power-of-d/rif"
    tier.endpoints_changed([])
    assert policy(tier) == "power-of-d/rif"
    tier.endpoints_changed([EndpointSettings("m", "discrete/work")])
    tier.policy_set(NOW_S, "m", "")
    assert policy(tier) == "discrete/work"


def test_what_a_mechanism_has_learned_outlives_a_change_that_is_not_its_own() -> None:
    tier = leaf(server("a"), endpoints=(EndpointSettings("m", "discrete/rif"),))
    before = tier.endpoints["m"].mechanism
    tier.endpoints_changed([EndpointSettings("m", "discrete/rif", Limits(5))])
    assert tier.endpoints["m"].mechanism is before
    tier.endpoints_changed([EndpointSettings("m", "discrete/work", Limits(5))])
    assert tier.endpoints["m"].mechanism is not before


def test_a_policy_that_is_none_or_is_for_no_endpoint_changes_nothing() -> None:
    tier = leaf(server("a"))
    before = policy(tier)
    with pytest.raises(ConfigError, match="no cost 'speed'"):
        tier.policy_set(NOW_S, "m", "discrete/speed")
    with pytest.raises(ConfigError, match="no endpoint 'other'"):
        tier.policy_set(NOW_S, "other", "discrete/rif")
    assert policy(tier) == before


# -- what is learned ---------------------------------------------------------------------------------------


def finish(tier: Tier, usage: Usage | None) -> None:
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S, exchange, 200)
    tier.ended(NOW_S, exchange, 200, usage, 0.0)


def test_tokens_per_byte_and_output_length_are_learned_from_usage() -> None:
    tier = leaf(server("a"))
    endpoint = tier.endpoints["m"]
    finish(tier, Usage(prompt_tokens=200, completion_tokens=28))  # of 400 bytes
    assert endpoint.tokens_per_byte.value == pytest.approx(0.25 + LEARNING_WEIGHT * (0.5 - FIRST_TOKENS_PER_BYTE))
    assert endpoint.output_tokens.value == pytest.approx(128 + LEARNING_WEIGHT * (28 - FIRST_OUTPUT_TOKENS))
    for _ in range(300):
        finish(tier, Usage(prompt_tokens=200, completion_tokens=28))
    exchange = arrive(tier)
    assert exchange.prompt_tokens == pytest.approx(200.0, rel=1e-3)
    assert exchange.output_tokens == pytest.approx(28.0, rel=1e-3)


@pytest.mark.parametrize("usage", [None, Usage()])
def test_an_answer_without_counts_teaches_nothing(usage: Usage | None) -> None:
    tier = leaf(server("a"))
    finish(tier, usage)
    assert tier.endpoints["m"].tokens_per_byte.value == FIRST_TOKENS_PER_BYTE
    assert tier.endpoints["m"].output_tokens.value == FIRST_OUTPUT_TOKENS


def test_a_root_estimate_and_a_request_cap_are_believed() -> None:
    tier = leaf(server("a"))
    action = moved(tier.arrived(NOW_S, Arrival("id", "m", 400, 33.0, 5)))
    assert (action.exchange.prompt_tokens, action.exchange.output_tokens) == (33.0, 5.0)


def test_the_work_of_a_request_is_prefill_until_the_first_byte_and_decode_until_the_end() -> None:
    tier = leaf(server("a"))
    exchange = arrive(tier)
    candidate = exchange.candidate
    assert candidate is not None
    decode_s = exchange.decode_s
    assert candidate.work_s == exchange.prefill_s + decode_s
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S, exchange, 200)
    assert candidate.work_s == pytest.approx(decode_s)
    tier.ended(NOW_S, exchange, 200, None, 0.0)
    assert candidate.work_s == 0.0


@pytest.mark.parametrize(("status", "samples"), [(200, 1), (404, 0), (500, 0)])
def test_only_a_success_is_a_latency_sample(status: int, samples: int) -> None:
    tier = leaf(server("a"))
    exchange = arrive(tier)
    tier.attempt_started(NOW_S, exchange)
    tier.first_byte(NOW_S + 1.0, exchange, 200)
    tier.ended(NOW_S + 5.0, exchange, status, None, 2.0)
    bins = tier.estimators["m"].bins(NOW_S + 5.0)
    assert [bin_.latency_s for bin_ in bins] == pytest.approx([3.0] * samples)  # the client's stall is not the server's


def test_requests_in_flight_are_told_with_the_load_they_met_and_their_age() -> None:
    tier = leaf(server("a"))
    first, second = arrive(tier), arrive(tier)
    tier.attempt_started(NOW_S, first)
    tier.first_byte(NOW_S + 1.0, first, 200)
    for at_s in (2.0, 3.0):
        tier.stalled(NOW_S + at_s, first)  # from the first time on its client may be what it waits for
    seen = tier.in_flight(NOW_S + 5.0, tier.endpoints["m"])
    assert seen == InFlight([0.0, 1.0], [2.0, 5.0], 1.0)
    tier.client_gone(NOW_S + 6.0, second)
    assert tier.in_flight(NOW_S + 6.0, tier.endpoints["m"]).ages_s == [2.0]


def test_of_very_many_in_flight_some_stand_for_all() -> None:
    tier = leaf(server("a"))
    for _ in range(3 * IN_FLIGHT_LOOKED_AT):
        arrive(tier)
    seen = tier.in_flight(NOW_S, tier.endpoints["m"])
    assert len(seen.loads) <= IN_FLIGHT_LOOKED_AT
    assert len(seen.loads) * seen.each == pytest.approx(3 * IN_FLIGHT_LOOKED_AT, rel=0.01)


# -- what an operator wants ----------------------------------------------------------------------------------


def test_a_drained_server_gets_nothing_new_and_keeps_what_it_has() -> None:
    tier = leaf(server("a"), server("b"))
    first = arrive(tier)
    place = first.address
    name = next(name for name, target in tier.targets.items() if place in target.addresses)
    tier.admin_set(NOW_S, name, "", AdminState.DRAIN)
    assert {arrive(tier).address for _ in range(20)} == {a for n in "ab" for a in (f"http://{n}:1",)} - {place}
    assert tier.targets[name].in_flight == 1
    tier.admin_set(NOW_S, name, "", AdminState.READY)
    assert {arrive(tier).address for _ in range(40)} == {"http://a:1", "http://b:1"}


def test_administrative_state_is_apart_from_health_and_survives_a_change_of_targets() -> None:
    tier = leaf(server("a"), server("b"))
    tier.admin_set(NOW_S, "a", "", AdminState.DRAIN)
    tier.address_changed(NOW_S, "a", "http://a:1", False)
    tier.address_changed(NOW_S, "a", "http://a:1", True)
    assert not tier.targets["a"].up
    tier.targets_changed([server("b")])
    tier.targets_changed([server("a", weight=2.0), server("b")])
    bring_up(tier)
    assert not tier.targets["a"].up
    assert {arrive(tier).address for _ in range(20)} == {"http://b:1"}


def test_one_leaf_of_a_cell_drained_leaves_the_other() -> None:
    tier = cells("x", leaves=2)
    tier.admin_set(NOW_S, "x", "http://x:0", AdminState.DRAIN)
    assert {arrive(tier).address for _ in range(6)} == {"http://x:1"}
    tier.admin_set(NOW_S, "x", "", AdminState.DRAIN)
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).code == "no_routable_cell"
    tier.admin_set(NOW_S, "x", "", AdminState.READY)
    assert {arrive(tier).address for _ in range(6)} == {"http://x:0", "http://x:1"}


def test_a_leaf_that_joins_a_drained_cell_is_drained_with_it() -> None:
    tier = cells("x", leaves=2)
    tier.admin_set(NOW_S, "x", "", AdminState.DRAIN)
    tier.targets_changed([TargetSettings("x", ("http://x:1", "http://x:2"))])
    for address in ("http://x:1", "http://x:2"):
        tier.state_reported(NOW_S, "x", address, State(endpoints={"m": EndpointState(k=1.0)}), 0.01)
    assert refused(tier.arrived(NOW_S, Arrival("id", "m"))).code == "no_routable_cell"


@pytest.mark.parametrize(("target", "address"), [("none", ""), ("a", "http://b:1")])
def test_what_there_is_not_cannot_be_drained(target: str, address: str) -> None:
    tier = leaf(server("a"), server("b"))
    with pytest.raises(ConfigError):
        tier.admin_set(NOW_S, target, address, AdminState.DRAIN)
    assert all(known.up for known in tier.targets.values())


# -- the audit -----------------------------------------------------------------------------------------------


def test_an_audit_of_true_counts_finds_nothing() -> None:
    tier = leaf(server("a"), server("b"))
    opened = tuple(arrive(tier).number for _ in range(9))
    assert tier.audited(NOW_S, opened) == Drift()
    assert sum(in_flight(tier).values()) == 9


def test_an_audit_closes_what_nobody_serves_any_more() -> None:
    tier = leaf(server("a"))
    kept, lost = arrive(tier), arrive(tier)
    assert tier.audited(NOW_S, (kept.number,)) == Drift(leaked=(lost.number,))
    assert in_flight(tier) == {"a": 1}
    assert list(tier.exchanges) == [kept.number]
    tier.client_gone(NOW_S, kept)
    assert in_flight(tier) == {"a": 0}


def test_an_audit_puts_miscounts_right_and_names_them() -> None:
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    candidate = exchange.candidate
    assert candidate is not None
    candidate.in_flight += 2
    candidate.target.in_flight -= 3
    exchange.endpoint.in_flight = 7
    candidate.work_s += 5.0
    name = candidate.target.name
    found = tier.audited(NOW_S, (exchange.number,))
    assert found.counts == (f"{name}: -2 counted, 1 open", f"m at {name}: 3 counted, 1 open", "m: 7 counted, 1 open")
    assert tier.audited(NOW_S, (exchange.number,)) == Drift()
    tier.client_gone(NOW_S, exchange)
    assert candidate.work_s == candidate.in_flight == exchange.endpoint.in_flight == 0
