"""The mechanism `flow`: the paper's formula by hand, where it settles, and shares of candidates that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf, nan, sqrt
from random import Random

import pytest

from dlbctl.core.mechanism import ROUND_S, Mechanism
from dlbctl.core.moving_shares import LONGEST_S
from dlbctl.core.policy import Policy
from dlbctl.core.settings import EndpointSettings, FlowSettings
from tests.core.views import ANY, Seen


def flow(stepsize: float = 0.0) -> Mechanism:
    mechanism = Policy.parse("flow/latency").start()
    mechanism.configure(EndpointSettings("m", flow=FlowSettings(stepsize)))
    return mechanism


def cells(*costs: float, k: tuple[float, ...] = (), tau_s: float = 0.0) -> list[Seen]:
    weights = k or (1.0,) * len(costs)
    return [
        Seen(cost=cost, weight=weight, tau_s=tau_s, name=name)
        for cost, weight, name in zip(costs, weights, "abcdefgh", strict=False)
    ]


def test_shares_move_by_the_papers_formula() -> None:
    """x <- Proj(x - eta dt c) by hand, eta = 10 and dt = 10 ms: a tenth of the cost is taken off each share."""
    mechanism = flow(stepsize=10.0)
    mechanism.round(5.00, cells(1.0, 0.8, 0.6, k=(2.0, 1.0, 1.0)))
    assert mechanism.shares(cells(1.0, 0.8, 0.6)) == [0.5, 0.25, 0.25]  # in proportion to k
    # .4 .17 .19 sum to .76; each gets a third of the .24 that lack.
    mechanism.round(5.01, cells(1.0, 0.8, 0.6))
    assert mechanism.shares(cells(0, 0, 0)) == pytest.approx([0.48, 0.25, 0.27], abs=1e-12)
    # .18 .20 .22 sum to .6; a third of .4 each.
    mechanism.round(5.02, cells(3.0, 0.5, 0.5))
    assert mechanism.shares(cells(0, 0, 0)) == pytest.approx([0.94 / 3, 1.0 / 3, 1.06 / 3], abs=1e-12)
    # -.587 .283 .303: the first would stay below 0, so it gets exactly that, and the others sum to 1.
    mechanism.round(5.03, cells(9.0, 0.5, 0.5))
    assert mechanism.shares(cells(0, 0, 0)) == pytest.approx([0.0, 0.49, 0.51], abs=1e-12)
    assert mechanism.shares(cells(0, 0, 0))[0] == 0.0


@pytest.mark.parametrize(
    ("taus_s", "stepsize"),
    [((0.02, 0.04), 0.01 / 0.03), ((0.1, 0.1), 0.1), ((0.0, 0.0), 10.0), ((0.0, 0.001), 10.0), ((0.0, 0.008), 2.5)],
)
def test_the_stepsize_is_inverse_to_the_mean_latency(taus_s: tuple[float, ...], stepsize: float) -> None:
    near, far = (Seen(cost=cost, tau_s=tau_s, name=str(cost)) for cost, tau_s in zip((1.0, 1.2), taus_s, strict=True))
    mechanism = flow()
    assert mechanism.stepsize([near, far]) == pytest.approx(stepsize)
    mechanism.round(0.0, [near, far])
    mechanism.round(0.01, [near, far])
    # Of two, each moves by half of the difference.
    assert mechanism.shares([near, far])[0] == pytest.approx(0.5 + stepsize * 0.01 * 0.1, abs=1e-12)


def test_a_stepsize_of_its_own_is_taken_over_with_what_was_learned() -> None:
    mechanism, given = flow(stepsize=2.0), cells(0.0, 1.0, tau_s=0.1)
    assert mechanism.stepsize(given) == 2.0
    mechanism.round(0.0, given)
    mechanism.round(0.1, given)
    mechanism.configure(EndpointSettings("m"))
    assert mechanism.stepsize(given) == pytest.approx(0.1)
    assert mechanism.shares(given) == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize("dt_s", [0.001, ROUND_S, 0.037, 0.5])
def test_a_late_round_makes_up_for_the_time(dt_s: float) -> None:
    mechanism, given = flow(stepsize=0.5), cells(0.0, 1.0)
    mechanism.round(0.0, given)
    mechanism.round(dt_s, given)
    assert mechanism.shares(given)[0] == pytest.approx(0.5 + 0.5 * 0.5 * dt_s)


def test_a_process_that_slept_makes_one_step_of_a_second() -> None:
    mechanism, given = flow(stepsize=0.1), cells(0.0, 1.0)
    mechanism.round(0.0, given)
    mechanism.round(3600.0, given)
    assert LONGEST_S == 1.0
    assert mechanism.shares(given)[0] == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("costs", "split"),
    [
        # c1 = 1 + x, c2 = 1.2 + (1 - x): equal at x = .6.
        ((lambda x: 1.0 + x, lambda x: 1.2 + x), (0.6, 0.4)),
        # 2 x1 = 3 x2 = 6 x3: in proportion to 3, 2, 1.
        ((lambda x: 2.0 * x, lambda x: 3.0 * x, lambda x: 6.0 * x), (1 / 2, 1 / 3, 1 / 6)),
        # The third is dearer idle than the others with everything: it gets nothing.
        ((lambda x: 1.0 + x, lambda x: 1.2 + x, lambda x: 5.0 + x), (0.6, 0.4, 0.0)),
    ],
)
def test_it_settles_where_costs_are_equal(
    costs: tuple[Callable[[float], float], ...], split: tuple[float, ...]
) -> None:
    """Costs of constant slope; each round comes nearer by the factor 1 - eta dt slope, at most .995 here."""
    mechanism = flow(stepsize=0.5)
    shares = [1.0 / len(costs)] * len(costs)
    for number in range(4000):
        given = cells(*(cost(share) for cost, share in zip(costs, shares, strict=True)))
        mechanism.round(number * ROUND_S, given)
        shares = mechanism.shares(given)
    assert shares == pytest.approx(split, abs=1e-6)


def test_requests_are_drawn_by_share_also_from_some_of_the_candidates() -> None:
    """Within five standard deviations of 4000 draws: 1 chance in a million."""
    mechanism, given, rng = flow(), cells(1.0, 1.0, 1.0, 1.0, k=(4.0, 3.0, 2.0, 1.0)), Random(3)
    mechanism.round(0.0, given)
    for some in (given, given[1:3], [given[3], given[0]]):
        counts = Counter(some[mechanism.choose(0.0, some, ANY, rng)[0]].name for _ in range(4000))
        for cell in some:
            share = cell.weight / sum(one.weight for one in some)
            assert abs(counts[cell.name] - 4000 * share) <= 5 * sqrt(4000 * share * (1 - share))


def test_one_that_has_no_share_is_not_drawn_unless_all_have_none() -> None:
    mechanism, given, rng = flow(stepsize=1000.0), cells(0.0, 9.0, 9.0), Random(3)
    mechanism.round(0.0, given)
    mechanism.round(0.1, given)
    assert mechanism.shares(given) == [1.0, 0.0, 0.0]
    assert {mechanism.choose(0.2, given, ANY, rng) for _ in range(200)} == {(0, "drawn")}
    # The only one with a share is full, or was tried.
    assert {mechanism.choose(0.2, given[1:], ANY, rng) for _ in range(200)} == {(0, "by-weight"), (1, "by-weight")}


def test_a_new_cell_enters_with_its_share_of_the_servers() -> None:
    mechanism, given = flow(stepsize=1.0), cells(0.0, 1.0, 5.0, k=(2.0, 2.0, 1.0))
    mechanism.round(0.0, given[:2])
    mechanism.round(0.2, given[:2])
    assert mechanism.shares(given[:2]) == pytest.approx([0.6, 0.4])
    assert mechanism.shares(given) == pytest.approx([0.8 * 0.6, 0.8 * 0.4, 0.2])
    mechanism.round(0.2, given)
    assert mechanism.shares(given) == pytest.approx([0.48, 0.32, 0.2])


def test_a_cell_that_goes_gives_its_share_back_and_comes_back_as_new() -> None:
    mechanism, given = flow(stepsize=1.0), cells(0.0, 1.0, 1.0, k=(1.0, 1.0, 2.0))
    mechanism.round(0.0, given)
    mechanism.round(0.1, given[:2])
    assert mechanism.shares(given[:2]) == pytest.approx([0.55, 0.45])
    assert mechanism.shares(given) == pytest.approx([0.275, 0.225, 0.5])


def test_where_only_those_without_a_share_are_left_it_begins_anew() -> None:
    mechanism, given = flow(stepsize=1000.0), cells(0.0, 9.0, 9.0, k=(1.0, 3.0, 1.0))
    mechanism.round(0.0, given)
    mechanism.round(0.1, given)
    assert mechanism.shares(given[1:]) == [0.75, 0.25]
    mechanism.round(0.1, given[1:])
    assert mechanism.shares(given[1:]) == [0.75, 0.25]


def test_costs_that_are_large_and_equal_move_nothing() -> None:
    mechanism, given = flow(stepsize=10.0), cells(1e12, 1e12, k=(7.0, 3.0))
    for number in range(100):
        mechanism.round(number * ROUND_S, given)
    assert mechanism.shares(given) == pytest.approx([0.7, 0.3], abs=1e-12)


def test_nobody_then_one_then_all() -> None:
    mechanism, given = flow(), cells(1.0, 1.0, k=(3.0, 1.0))
    mechanism.round(0.0, [])
    assert mechanism.shares([]) == []
    mechanism.round(0.01, given[:1])
    assert mechanism.shares(given[:1]) == [1.0]
    mechanism.round(0.02, [])
    mechanism.round(0.03, given)
    assert mechanism.shares(given) == [0.75, 0.25]


@pytest.mark.parametrize(
    ("costs", "shares"),
    [
        ((1.0, inf), (1.0, 0.0)),
        ((1.0, nan), (1.0, 0.0)),
        ((1.0, -inf), (1.0, 0.0)),
        ((inf, nan), (0.5, 0.5)),
        ((1.7e308, 1e300), (0.0, 1.0)),
    ],
)
def test_a_cost_that_is_no_number_takes_the_share_and_enters_nothing(
    costs: tuple[float, ...], shares: tuple[float, ...]
) -> None:
    mechanism, given = flow(), cells(*costs)
    mechanism.round(0.0, given)
    mechanism.round(0.01, given)
    assert mechanism.shares(given) == list(shares)
    mechanism.round(0.02, cells(1.0, 1.0))
    assert mechanism.shares(given) == list(shares)
