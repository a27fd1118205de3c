"""Costs against their closed forms, written out anew from the paper's definitions."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest
from msgspec.structs import replace

from dlbctl.core.curve import Curve
from dlbctl.core.policy import COSTS, Cost, Policy
from dlbctl.core.prices import price, prices
from tests.core.views import Asked, Seen, views

A, B, C, S = 0.8, 0.096, 6.0, 1.5
CURVE = Curve(a=A, b=B, c=C, s=S)
LOADS = [0.0, 0.5, 3.0, 6.0, 9.0, 20.0]
TAU_S = 0.07


def latency_s(n: float) -> float:
    return A + B * S * log(1.0 + exp((n - C) / S))


def slope(n: float) -> float:
    return B / (1.0 + exp(-(n - C) / S))


@pytest.mark.parametrize("n", LOADS)
def test_latency_is_the_curve_and_the_round_trip(n: float) -> None:
    assert Cost.load("latency").of(Seen(n, TAU_S, CURVE)) == pytest.approx(latency_s(n) + 2 * TAU_S, rel=1e-12)


@pytest.mark.parametrize("n", LOADS)
def test_gradient_is_the_inverse_slope_of_throughput_and_the_round_trip(n: float) -> None:
    """mu = n/l, so 1/mu' = l^2 / (l - n l')."""
    expected = latency_s(n) ** 2 / (latency_s(n) - n * slope(n))
    assert Cost.load("gradient").of(Seen(n, TAU_S, CURVE)) == pytest.approx(expected + 2 * TAU_S, rel=1e-12)


@pytest.mark.parametrize("n", LOADS)
def test_rif_is_the_load(n: float) -> None:
    assert Cost.load("rif").of(Seen(n, TAU_S, None)) == n


def test_work_is_shared_out_by_weight() -> None:
    assert Cost.load("work").of(Seen(work_s=3.0, weight=2.0, curve=None)) == 1.5


@pytest.mark.parametrize(("sd", "ready"), [(0.0, True), (0.5, True), (0.51, False), (float("inf"), False)])
def test_gradient_needs_a_slope_that_is_known(sd: float, ready: bool) -> None:
    assert Cost.load("gradient").ready(Seen(curve=Curve(a=A, b=B, c=C, s=S, sd_log_gradient=sd))) is ready
    assert Cost.load("latency").ready(Seen(curve=Curve(a=A, b=B, c=C, s=S, sd_log_gradient=sd)))


@pytest.mark.parametrize("name", COSTS.names())
def test_every_cost_grows_with_what_it_measures_and_says_its_unit(name: str) -> None:
    cost = Cost.load(name)
    assert cost.unit
    values = [cost.of(Seen(load=float(n), work_s=float(n), curve=CURVE)) for n in range(30)]
    assert values == sorted(values)
    assert values[0] < values[-1]


@pytest.mark.parametrize("n", LOADS)
@pytest.mark.parametrize(("sd", "confidence"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.2)])
def test_gated_is_between_latency_and_gradient_by_the_confidence_in_the_slope(
    n: float, sd: float, confidence: float
) -> None:
    view = Seen(n, TAU_S, replace(CURVE, sd_log_gradient=sd))
    gradient = Cost.load("gradient").of(view) - 2 * TAU_S
    expected = gradient**confidence * latency_s(n) ** (1 - confidence) + 2 * TAU_S
    assert Cost.load("gated").of(view) == pytest.approx(expected, rel=1e-12)
    assert Cost.load("auto").of(view) == Cost.load("gated").of(view)


def test_unified_adds_what_a_prompt_takes_beyond_a_usual_one() -> None:
    """1000 tokens more than usual at .2 ms each; fewer than usual are worth as much the other way."""
    cost, view = Cost.load("unified"), Seen(3.0, TAU_S, CURVE, prefill_s_per_token=0.0002)
    assert cost.per_token is not None
    view.cost, view.per_token = cost.of(view), cost.per_token(view)
    assert view.cost == Cost.load("gradient").of(view)
    assert price(view, Asked(extra_tokens=1000.0)) == pytest.approx(view.cost + 0.2)
    assert prices([view], Asked(extra_tokens=-500.0)) == [pytest.approx(view.cost - 0.1)]


@pytest.mark.parametrize("mechanism", ["argmin", "discrete", "power-of-d"])
def test_long_prompts_go_where_they_are_read_faster(mechanism: str) -> None:
    slow_reader = Seen(3.0, 0.01, CURVE, prefill_s_per_token=0.0004)
    given = views(f"{mechanism}/unified", slow_reader, Seen(3.0, 0.05, CURVE, prefill_s_per_token=0.0001))
    chosen, rng = Policy.parse(f"{mechanism}/unified").start(), Random(1)
    assert chosen.choose(0.0, given, Asked(extra_tokens=0.0), rng)[0] == 0
    assert chosen.choose(0.0, given, Asked(extra_tokens=500.0), rng)[0] == 1


def test_costs_lead_from_the_best_to_the_one_that_is_always_known() -> None:
    """The onboarding of an endpoint, seen from its end."""
    assert fallbacks("auto") == ["auto", "gated", "rif"]
    assert fallbacks("unified") == ["unified", "gradient", "latency", "rif"]


def fallbacks(name: str) -> list[str]:
    cost = Cost.load(name)
    return [name, *fallbacks(cost.fallback)] if cost.fallback else [name]


@pytest.mark.parametrize("n", LOADS)
def test_tail_is_the_percentiles_curve_and_the_round_trip(n: float) -> None:
    seen = Seen(n, TAU_S, None, tail=CURVE)
    assert Cost.load("tail").of(seen) == pytest.approx(latency_s(n) + 2 * TAU_S, rel=1e-12)
    assert not Cost.load("tail").ready(Seen(curve=CURVE, tail=None))
