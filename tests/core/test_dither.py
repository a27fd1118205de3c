"""Curves that policies see somewhat off, as far as they are unsure: by how much, for how long, and for whom."""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
from msgspec.structs import replace

from dlbctl.core import snapshot
from dlbctl.core.curve import Curve
from dlbctl.core.events import Arrival, EndpointState, Forward, State
from dlbctl.core.settings import EndpointSettings, ExplorationSettings, TargetSettings, TierSettings
from dlbctl.core.target import DITHER_MAX_S, DITHER_MIN_S
from dlbctl.core.tier import DITHER_BEAT_S, Tier

CURVE = Curve(a=0.8, b=0.096, c=6.0, s=1.5, version=1, sd_log_gradient=0.2, samples=100.0)
NAMES = [f"c{number}" for number in range(40)]


def root(policy: str = "discrete/latency", *, dither: float = 0.05, sd: float = 0.2, seed: int = 1) -> Tier:
    targets = tuple(TargetSettings(name, (f"http://{name}:1",)) for name in NAMES)
    endpoint = EndpointSettings("m", policy, exploration=ExplorationSettings(dither=dither))
    tier = Tier(TierSettings("root", "here", targets, (endpoint,), seed=seed), "r00t")
    for name in NAMES:
        report(tier, name, replace(CURVE, sd_log_gradient=sd))
    return tier


def report(tier: Tier, name: str, curve: Curve | None, tail: Curve | None = None) -> None:
    state = EndpointState(
        k=2.0,
        curve_version=curve.version if curve else 0,
        curve=curve,
        tail_version=tail.version if tail else 0,
        tail=tail,
    )
    tier.state_reported(0.0, name, f"http://{name}:1", State(endpoints={"m": state}), 0.01)


def off(tier: Tier) -> list[float]:
    """By how much, in logarithms, each cell's latency is seen off what its leaf reported."""
    seen = []
    for candidate in tier.endpoints["m"].candidates.values():
        assert candidate.curve is not None
        assert candidate.learned is not None
        seen.append(log(candidate.curve.latency_s(9.0) / candidate.learned.latency_s(9.0)))
    return seen


def until(tier: Tier, end_s: float, now_s: float = 0.0) -> list[list[float]]:
    """What is seen at each beat of the timer."""
    history = []
    while now_s < end_s:
        tier.timer_fired(now_s)
        history.append(off(tier))
        now_s += DITHER_BEAT_S
    return history


@pytest.mark.parametrize(("dither", "sd", "expected"), [(0.05, 0.2, 0.05), (0.05, 0.01, 0.01), (0.2, 0.15, 0.15)])
def test_curves_swing_by_their_uncertainty_at_most_by_what_is_set(dither: float, sd: float, expected: float) -> None:
    """200 s and 40 cells are 1,000 draws: their SD is known to 3 %."""
    seen = [one for beat in until(root(dither=dither, sd=sd), 200.0) for one in beat]
    assert (sum(one**2 for one in seen) / len(seen)) ** 0.5 == pytest.approx(expected, rel=0.1)
    assert abs(sum(seen) / len(seen)) < 0.1 * expected


def test_each_cell_is_seen_so_for_five_to_ten_seconds() -> None:
    history = until(root(), 120.0)
    for cell in range(len(NAMES)):
        changes = [beat for beat in range(1, len(history)) if history[beat][cell] != history[beat - 1][cell]]
        stays = [(after - before) * DITHER_BEAT_S for before, after in pairwise(changes)]
        assert min(stays) >= DITHER_MIN_S
        assert max(stays) <= DITHER_MAX_S + DITHER_BEAT_S
    assert len(set(history[0])) == len(NAMES)  # each by its own


def test_a_new_curve_is_seen_off_as_the_one_before() -> None:
    tier = root()
    until(tier, 1.0)
    before = off(tier)
    report(tier, "c0", replace(CURVE, a=2.0, b=0.2, version=2))
    assert off(tier) == pytest.approx(before)


@pytest.mark.parametrize("policy", ["argmin/latency", "flow/gradient"])
def test_the_papers_mechanisms_see_curves_as_they_are(policy: str) -> None:
    assert {one for beat in until(root(policy), 30.0) for one in beat} == {0.0}


def test_it_can_be_turned_off_and_follows_a_switch_of_policy_at_once() -> None:
    assert set(off_after(root(dither=0.0))) == {0.0}
    tier = root()
    assert 0.0 not in off_after(tier)
    tier.policy_set(1.0, "m", "argmin/latency")
    assert set(off(tier)) == {0.0}
    tier.policy_set(1.0, "m", "")
    assert 0.0 not in off(tier)
    tier.endpoints_changed([EndpointSettings("m", exploration=ExplorationSettings(dither=0.0))])
    assert set(off(tier)) == {0.0}


def off_after(tier: Tier) -> list[float]:
    return until(tier, 1.0)[-1]


def test_people_are_shown_what_was_reported() -> None:
    tier = root()
    until(tier, 1.0)
    assert {row.curve for row in snapshot.curves(tier, 1.0)} == {CURVE}
    assert {row.latency_s for row in snapshot.cells(tier, 1.0)} == {CURVE.latency_s(0.0)}


def test_it_moves_choices_and_the_same_seed_moves_them_alike() -> None:
    """All 40 cells are alike: without dither all are ties, and with it few are."""

    def chosen(seed: int, dither: float) -> list[str]:
        tier = root(dither=dither, seed=seed)
        went = []
        for number in range(200):
            now_s = 0.5 * number
            tier.timer_fired(now_s)
            action = tier.arrived(now_s, Arrival("id", "m"))
            assert isinstance(action, Forward)
            went.append(f"{action.address} {action.rule}")
            tier.client_gone(now_s, action.exchange)
        return went

    first = chosen(1, 0.05)
    assert first == chosen(1, 0.05) != chosen(2, 0.05)
    assert sum("tie" in one for one in chosen(1, 0.0)) == 200
    assert sum("tie" in one for one in first) < 150
    assert len({one.split()[0] for one in first}) > 10


# -- the curve of the 95th percentile ----------------------------------------------------------------------

TAIL = replace(CURVE.scaled(2.0), version=7)


def test_a_tail_that_is_known_everywhere_can_be_gone_by() -> None:
    tier = root("discrete/tail")
    endpoint = tier.endpoints["m"]
    assert endpoint.cost.name == "latency"
    for name in NAMES:
        report(tier, name, CURVE, TAIL)
    assert endpoint.cost.name == "tail"
    assert endpoint.candidates["c0"].tail == TAIL
    until(tier, 1.0)
    tail, curve = endpoint.candidates["c0"].tail, endpoint.candidates["c0"].curve
    assert tail is not None
    assert curve is not None
    assert tail.latency_s(3.0) / curve.latency_s(3.0) == pytest.approx(2.0)  # both are off alike


def test_a_tail_is_kept_until_its_leaf_has_none_or_is_gone() -> None:
    tier = root("discrete/tail")
    for name in NAMES:
        report(tier, name, CURVE, TAIL)
    unchanged = State(endpoints={"m": EndpointState(k=2.0, curve_version=1, tail_version=7)})
    tier.state_reported(1.0, "c0", "http://c0:1", unchanged, 0.01)
    assert known(tier) == {"c0", "c1"}
    tier.address_changed(2.0, "c0", "http://c0:1", False)
    assert known(tier) == {"c1"}
    report(tier, "c0", CURVE, TAIL)
    assert known(tier) == {"c0", "c1"}
    report(tier, "c0", CURVE)
    assert known(tier) == {"c1"}
    assert tier.endpoints["m"].cost.name == "latency"


def known(tier: Tier) -> set[str]:
    """Of the first two cells those whose tail is known."""
    candidates = tier.endpoints["m"].candidates
    return {name for name in ("c0", "c1") if candidates[name].tail is not None}
