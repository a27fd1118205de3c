"""The mechanism `auto`: which of two ways it goes, that it does not waver, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dlbctl.core.mechanism import Mechanism
from dlbctl.core.policy import Cost, Policy
from dlbctl.core.settings import EndpointSettings
from tests.core.views import ANY, CURVE, Seen


def auto() -> Mechanism:
    mechanism = Policy.parse("auto/latency").start()
    mechanism.configure(EndpointSettings("m"))
    mechanism.priced(Cost.load("latency"))
    return mechanism


def cells(tau_s: float) -> list[Seen]:
    """Requests take .8 s when nothing else is there."""
    return [Seen(cost=1.0, tau_s=tau_s, name="a"), Seen(cost=1.2, tau_s=tau_s, name="b")]


def lived(mechanism: Mechanism, given: list[Seen], begins_s: float, seconds: int, rate_rps: int) -> set[str]:
    """Requests at a steady rate, with the rounds that come meanwhile; the rules of the last second."""
    rng, rules = Random(1), set[str]()
    mechanism.among(given)
    for second in range(seconds):
        now_s = begins_s + second
        mechanism.round(now_s, given)
        rules = {mechanism.choose(now_s + n / rate_rps, given, ANY, rng)[1] for n in range(rate_rps)}
    return rules


def test_boulders_are_placed_one_by_one_and_sand_is_poured() -> None:
    far, near = cells(2.0), cells(0.01)
    mechanism = auto()
    assert lived(mechanism, near, 0.0, 30, 20) == {"least-cost"}
    assert mechanism.standing(near) == "discrete: a request takes 40 x the round trip"
    assert mechanism.shares(near) == []
    assert mechanism.stepsize(near) is None
    rules = lived(mechanism, far, 30.0, 30, 20)
    assert rules <= {"drawn", "in-turn"}
    assert mechanism.standing(far) == "flow-pi: a request takes 0.2 x the round trip"
    assert sum(mechanism.shares(far)) == pytest.approx(1.0)
    assert mechanism.stepsize(far) == pytest.approx(0.005)
    assert lived(mechanism, near, 60.0, 5, 20) == {"least-cost"}


def test_between_the_limits_it_stays_as_it_is() -> None:
    between = cells(0.8 / 2.0 / 1.5)  # a request takes 1.5 round trips
    mechanism = auto()
    assert lived(mechanism, between, 0.0, 60, 20) == {"least-cost"}
    lived(mechanism, cells(2.0), 60.0, 10, 20)
    assert lived(mechanism, between, 70.0, 60, 20) <= {"drawn", "in-turn"}


def test_few_requests_are_compared_one_by_one() -> None:
    far = cells(2.0)
    mechanism = auto()
    lived(mechanism, far, 0.0, 60, 20)
    assert mechanism.shares(far)
    for number in range(240):
        mechanism.round(60.0 + number, far)
    assert mechanism.shares(far) == []
    assert mechanism.standing(far).endswith("requests/s through this router are too few for shares")


def test_without_curves_and_in_one_place_costs_are_compared() -> None:
    unknown = [replace(cell, curve=None) for cell in cells(2.0)]
    mechanism = auto()
    assert lived(mechanism, unknown, 0.0, 30, 20) == {"least-cost"}
    assert mechanism.standing(unknown) == "discrete: how long a request takes is not known yet"
    assert lived(mechanism, cells(0.0), 30.0, 30, 20) == {"least-cost"}


def test_rounds_wake_nobody_where_shares_will_not_be_used() -> None:
    mechanism, far, near = auto(), cells(2.0), cells(0.01)
    assert not mechanism.wants_rounds()
    lived(mechanism, near, 0.0, 30, 20)
    assert not mechanism.wants_rounds()
    lived(mechanism, far, 30.0, 30, 20)
    assert mechanism.wants_rounds()
    for number in range(240):
        mechanism.round(60.0 + number, far)
    assert not mechanism.wants_rounds(), "no request came for minutes"


def test_the_time_of_a_request_is_that_of_the_servers_there_are() -> None:
    slow = CURVE.perturbed(10.0)
    mechanism, given = auto(), [Seen(tau_s=0.5, name="a", weight=3.0), Seen(tau_s=0.5, name="b", curve=slow)]
    assert mechanism.standing(given) == "discrete: a request takes 2.6 x the round trip"  # (3 x .8 + 8) / 4
