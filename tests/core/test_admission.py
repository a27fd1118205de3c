"""Scripts of requests that wait at a leaf for a server with room, and of what may be sent twice."""

from __future__ import annotations

from dlbctl.core.events import Arrival, Failure, Forward, Reject, RequestAction, Turn, Wait
from dlbctl.core.exchange import Exchange, Phase
from dlbctl.core.settings import EndpointSettings, HealthSettings, Limits, QueueSettings, RetrySettings
from dlbctl.core.tier import Tier
from tests.core.test_tier import NOW_S, arrive, cells, leaf, moved, refused, server

QUEUE = QueueSettings(size=3, max_wait_s=8.0)


def full(size: int = 3) -> tuple[Tier, Exchange]:
    """A leaf whose only server has one slot, and the request in it."""
    tier = leaf(server("a", slots=1), queue=QueueSettings(size=size, max_wait_s=8.0))
    return tier, arrive(tier)


def come(tier: Tier, name: str = "id", priority: int = 0, patience_s: float = 0.0) -> RequestAction:
    return tier.arrived(NOW_S, Arrival(name, "m", 400, priority=priority, patience_s=patience_s))


def waiting(action: RequestAction) -> Wait:
    assert isinstance(action, Wait), action
    return action


def end(tier: Tier, exchange: Exchange, now_s: float = NOW_S) -> None:
    tier.attempt_started(now_s, exchange)
    tier.first_byte(now_s, exchange, 200)
    tier.ended(now_s, exchange, 200, None, 0.0)


def turn(tier: Tier, now_s: float = NOW_S) -> Turn:
    found = tier.turn(now_s)
    assert found is not None
    return found


def test_a_request_waits_for_room_and_its_turn_comes_with_it() -> None:
    tier, first = full()
    wait = waiting(come(tier))
    assert wait.until_s == NOW_S + 8.0
    assert wait.exchange.phase is Phase.QUEUED
    assert tier.turn(NOW_S) is None
    assert tier.report(NOW_S).endpoints["m"].rif == 2
    end(tier, first)
    assert moved(turn(tier).action).exchange is wait.exchange
    assert tier.turn(NOW_S) is None
    assert tier.targets["a"].in_flight == 1


def test_turns_go_by_priority_then_by_arrival_and_nobody_overtakes() -> None:
    tier, first = full(size=4)
    for name, priority in (("low", -1), ("one", 0), ("two", 0)):
        waiting(come(tier, name, priority))
    end(tier, first)
    waiting(come(tier, "late", 0))
    served = []
    while (found := tier.turn(NOW_S)) is not None:
        served.append(found.exchange.arrival.id)
        end(tier, found.exchange)
    assert served == ["one", "two", "late", "low"]


def test_a_full_queue_says_no_with_the_time_to_come_back() -> None:
    tier, _ = full(size=1)
    waiting(come(tier))
    action = refused(come(tier))
    assert (action.status, action.code) == (503, "queue_full")
    assert action.retry_after_s >= 1


def test_a_more_urgent_request_takes_the_place_of_the_least_urgent() -> None:
    tier, first = full(size=2)
    waiting(come(tier, "low", -5))
    waiting(come(tier, "mid", 0))
    waiting(come(tier, "high", 5))
    shed = turn(tier)
    assert shed.exchange.arrival.id == "low"
    assert isinstance(shed.action, Reject)
    assert shed.action.code == "queue_shed"
    end(tier, first)
    assert turn(tier).exchange.arrival.id == "high"
    assert len(tier.exchanges) == 2


def test_a_client_that_would_not_wait_so_long_is_told_at_once() -> None:
    tier, first = full()
    end(tier, first)
    for _ in range(19):  # twenty ended lately: some 1.4 a second
        end(tier, arrive(tier))
    arrive(tier)
    waiting(come(tier, patience_s=2.0))
    action = refused(come(tier, patience_s=1.0))
    assert (action.code, action.retry_after_s) == ("queue_deadline", 2)
    assert waiting(come(tier, patience_s=3.0)).until_s == NOW_S + 3.0


def test_waiting_ends_with_patience() -> None:
    tier, _ = full()
    wait = waiting(come(tier))
    action = refused(tier.expired(wait.until_s, wait.exchange, False))
    assert (action.status, action.code) == (503, "queue_timeout")
    assert len(tier.exchanges) == 1
    assert tier.turn(NOW_S) is None


def test_a_client_that_leaves_the_queue_leaves_nothing() -> None:
    tier, first = full()
    wait = waiting(come(tier))
    tier.client_gone(NOW_S, wait.exchange)
    end(tier, first)
    assert tier.turn(NOW_S) is None
    assert not tier.exchanges


def test_the_limit_of_an_endpoint_makes_requests_wait_at_a_leaf_and_be_refused_by_a_root() -> None:
    tier = leaf(server("a"), endpoints=(EndpointSettings("m", limits=Limits(1)),), queue=QUEUE)
    first = arrive(tier)
    waiting(come(tier))
    end(tier, first)
    moved(turn(tier).action)
    root = cells("x")
    root.endpoints_changed([EndpointSettings("m", limits=Limits(1))])
    arrive(root)
    action = refused(root.arrived(NOW_S, Arrival("id", "m")))
    assert (action.status, action.code, action.retry_after_s) == (503, "endpoint_full", 1)


def test_the_limit_of_a_router_is_never_waited_for() -> None:
    tier = leaf(server("a", slots=1), queue=QUEUE, max_in_flight=2)
    arrive(tier)
    waiting(come(tier))
    assert refused(come(tier)).code == "router_full"


def test_with_no_server_up_nobody_waits() -> None:
    tier = leaf(server("a", slots=1), queue=QUEUE, up=False)
    assert refused(come(tier)).code == "no_routable_server"


def test_a_retry_that_finds_every_other_server_full_waits_and_is_not_sent_back() -> None:
    tier = leaf(server("a"), server("b", slots=1), queue=QUEUE)
    held = next(e for e in (arrive(tier) for _ in range(20)) if e.address == "http://b:1")
    failing = next(e for e in tier.exchanges.values() if e.address == "http://a:1")
    wait = waiting(tier.attempt_failed(NOW_S, failing, Failure.CONNECT_TIMEOUT, False, False, False, 0.0))
    end(tier, held)
    assert wait.exchange is failing
    assert moved(turn(tier).action).address == "http://b:1"


# -- retries -------------------------------------------------------------------------------------------------


def declined(tier: Tier, exchange: Exchange, failure: Failure = Failure.BUSY) -> RequestAction:
    tier.attempt_started(NOW_S, exchange)
    return tier.attempt_failed(NOW_S, exchange, failure, True, False, False, 0.0)


def test_what_a_busy_server_declined_is_sent_to_another() -> None:
    """Cases 21 and 24."""
    tier = leaf(server("a"), server("b"))
    exchange = arrive(tier)
    first = exchange.address
    assert tier.keeps_back(exchange, 503)
    assert tier.keeps_back(exchange, 429)
    assert not tier.keeps_back(exchange, 500)
    assert moved(declined(tier, exchange)).address != first


def test_after_bytes_were_sent_only_an_endpoint_that_says_so_tries_again() -> None:
    """Case 28."""
    both = (EndpointSettings("m"), EndpointSettings("n", retries=RetrySettings(after_sent=True, budget=1.0)))
    models = ("m", "n")
    tier = leaf(*(server(name, models=models) for name in "ab"), endpoints=both, health=HealthSettings(failures=0))
    for failure in (Failure.FIRST_BYTE_TIMEOUT, Failure.CLOSED, Failure.ERROR):
        assert isinstance(declined(tier, arrive(tier, "m"), failure), Reject)
        assert isinstance(declined(tier, arrive(tier, "n"), failure), Forward)
    waited, patient = arrive(tier, "m"), arrive(tier, "n")
    for exchange in (waited, patient):
        tier.attempt_started(NOW_S, exchange)
    assert refused(tier.expired(NOW_S, waited, False)).code == "upstream_first_byte_timeout"
    moved(tier.expired(NOW_S, patient, False))


def test_a_body_that_is_not_kept_is_not_sent_again() -> None:
    tier = leaf(server("a"), server("b"))
    action = tier.arrived(NOW_S, Arrival("id", "m", 400, replayable=False))
    exchange = moved(action).exchange
    assert tier.keeps_back(exchange, 503), "it may say for how long it is busy"
    assert refused(declined(tier, exchange)).code == "upstream_busy"


def test_retries_under_way_stay_inside_the_budget() -> None:
    """Case 30: a thousand at once, all declined by whoever is asked."""
    tier = leaf(*(server(f"s{n}") for n in range(4)))
    exchanges = [arrive(tier) for _ in range(1000)]
    tried = [exchange for exchange in exchanges if isinstance(declined(tier, exchange, Failure.BUSY), Forward)]
    assert 1 <= len(tried) <= 200
    assert tier.endpoints["m"].retrying == len(tried)
    assert tier.endpoints["m"].retries_denied + len(tried) <= 1000
    for exchange in tried:
        tier.client_gone(NOW_S, exchange)
    assert tier.endpoints["m"].retrying == 0


def test_three_retries_at_once_are_always_allowed() -> None:
    tier = leaf(*(server(f"s{n}") for n in range(9)))
    actions = [declined(tier, exchange) for exchange in [arrive(tier) for _ in range(5)]]
    assert [isinstance(action, Forward) for action in actions] == [True, True, True, False, False]


def test_a_refused_connection_costs_no_budget() -> None:
    tier = leaf(server("a"), server("b"), retries=RetrySettings(budget=0.0, budget_min=0))
    exchange = arrive(tier)
    moved(tier.attempt_failed(NOW_S, exchange, Failure.REFUSED, False, False, False, 0.0))


def test_what_a_cell_declined_is_not_asked_of_its_other_leaves() -> None:
    tier = cells("x", "y", leaves=2)
    exchange = arrive(tier)
    cell = exchange.address[7]
    assert moved(declined(tier, exchange)).address[7] != cell
    tier.attempt_started(NOW_S, exchange)
    assert isinstance(tier.attempt_failed(NOW_S, exchange, Failure.BUSY, True, False, False, 0.0), Reject)
