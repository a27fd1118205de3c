"""The mechanism `flow-pi`: its two parts by hand, which heights it goes by, and where it settles."""

from __future__ import annotations

from collections import Counter
from math import exp
from random import Random

import pytest

from dlbctl.core.mechanism import ROUND_S, Mechanism
from dlbctl.core.policy import Cost, Policy
from dlbctl.core.settings import EndpointSettings, FlowSettings
from tests.core.views import ANY, Seen


def flow_pi(cost: str = "latency", flow: FlowSettings | None = None) -> Mechanism:
    mechanism = Policy.parse(f"flow-pi/{cost}").start()
    mechanism.configure(EndpointSettings("m", flow=flow or FlowSettings()))
    mechanism.priced(Cost.load(cost))
    return mechanism


def cells(*costs: float, k: tuple[float, ...] = (), tau_s: float = 0.0) -> list[Seen]:
    weights = k or (1.0,) * len(costs)
    return [
        Seen(cost=cost, weight=weight, tau_s=tau_s, name=f"c{n}")
        for n, (cost, weight) in enumerate(zip(costs, weights, strict=True))
    ]


def test_it_leans_at_once_and_learns_by_and_by() -> None:
    """h is (0, .2). At once kp h = .02 is taken off the second and half of it given to each; eta dt h = .1 likewise."""
    mechanism, given = flow_pi(flow=FlowSettings(0.5)), cells(1.0, exp(0.2), k=(3.0, 1.0))
    mechanism.round(5.0, given)
    assert mechanism.shares(given) == pytest.approx([0.76, 0.24], abs=1e-12)
    mechanism.round(6.0, given)
    assert mechanism.shares(given) == pytest.approx([0.75 + 0.05 + 0.01, 0.25 - 0.05 - 0.01], abs=1e-12)
    # Equal costs leave what was learned, and nothing else.
    mechanism.round(7.0, cells(1.0, 1.0))
    assert mechanism.shares(cells(1.0, 1.0)) == pytest.approx([0.8, 0.2], abs=1e-12)


def test_it_goes_by_ratios_of_times_and_by_differences_of_counts() -> None:
    for cost, scale, same in (("latency", 10.0, True), ("gradient", 0.1, True), ("rif", 10.0, False)):
        shares = []
        for factor in (1.0, scale):
            mechanism, given = flow_pi(cost, FlowSettings(0.1)), cells(0.2 * factor, 0.3 * factor)
            mechanism.round(0.0, given)
            mechanism.round(1.0, given)
            shares.append(mechanism.shares(given))
        assert (shares[0] == pytest.approx(shares[1], abs=1e-9)) == same
    mechanism, given = flow_pi("rif"), cells(0.0, 0.5)
    mechanism.round(0.0, given)
    assert mechanism.shares(given) == pytest.approx([0.525, 0.475])  # half a request of a unit of one: kp h = .05


def test_a_fallback_to_counts_is_followed() -> None:
    mechanism, given = flow_pi("latency"), cells(0.1, 0.3)
    mechanism.round(0.0, given)
    before = mechanism.shares(given)
    assert before == pytest.approx([0.55, 0.45])  # ln 3 > 1
    mechanism.priced(Cost.load("rif"))
    mechanism.round(0.0, given)
    assert mechanism.shares(given) == pytest.approx([0.51, 0.49])


@pytest.mark.parametrize(("taus_s", "stepsize"), [((0.02, 0.04), 0.01 / 0.03), ((0.0, 0.0), 10.0), ((0.1, 0.1), 0.1)])
def test_the_stepsize_is_inverse_to_the_mean_latency(taus_s: tuple[float, float], stepsize: float) -> None:
    given = [Seen(tau_s=tau_s, name=str(n)) for n, tau_s in enumerate(taus_s)]
    assert flow_pi().stepsize(given) == pytest.approx(stepsize)


def test_a_factor_of_e_is_the_highest_there_is() -> None:
    dear, dearest = flow_pi(), flow_pi()
    for mechanism, cost in ((dear, 3.0), (dearest, 3e9)):
        for number in range(50):
            mechanism.round(number * ROUND_S, cells(1.0, cost))
    assert dear.shares(cells(0, 0)) == dearest.shares(cells(0, 0))


def test_it_settles_where_the_optimum_is() -> None:
    """Costs in proportion to x / (weight of the cell), so equal where shares are as the weights."""
    mechanism, speeds = flow_pi(flow=FlowSettings(1.0)), (1.0, 2.0, 5.0)
    shares = [1.0 / 3.0] * 3
    for number in range(3000):
        given = cells(*(share / speed for share, speed in zip(shares, speeds, strict=True)))
        mechanism.round(number * ROUND_S, given)
        shares = mechanism.shares(given)
    assert shares == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=1e-6)


def test_shares_by_deficit_are_kept_at_every_moment_also_of_some_of_the_candidates() -> None:
    mechanism, given, rng = (
        flow_pi(flow=FlowSettings(split="deficit")),
        cells(1.0, 1.0, 1.0, k=(5.0, 3.0, 2.0)),
        Random(3),
    )
    mechanism.round(0.0, given)
    counts = Counter[str]()
    for number in range(1, 500):
        index, rule = mechanism.choose(0.0, given, ANY, rng)
        assert rule == "in-turn"
        counts[given[index].name] += 1
        assert max(abs(counts[cell.name] - number * cell.weight / 10.0) for cell in given) < 4.0
    some = Counter(given[1:][mechanism.choose(0.0, given[1:], ANY, rng)[0]].name for _ in range(500))
    assert some["c1"] == pytest.approx(300, abs=4)
    # Nobody catches up on what was missed meanwhile.
    after = Counter(given[mechanism.choose(0.0, given, ANY, rng)[0]].name for _ in range(100))
    assert after["c0"] == pytest.approx(50, abs=4)


def test_how_requests_are_drawn_can_be_chosen() -> None:
    given = cells(1.0, 1.0)
    for split, rule in (("random", "drawn"), ("deficit", "in-turn")):
        mechanism = Policy.parse("flow/latency").start()
        mechanism.configure(EndpointSettings("m", flow=FlowSettings(split=split)))  # type: ignore[arg-type]
        mechanism.round(0.0, given)
        assert mechanism.choose(0.0, given, ANY, Random(1))[1] == rule
