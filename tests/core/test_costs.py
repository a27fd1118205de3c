"""Costs against their closed forms, written out anew from the paper's definitions."""

from __future__ import annotations

from math import exp, log

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.policy import COSTS, Cost
from tests.core.views import Seen

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
