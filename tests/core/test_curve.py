"""The latency curve: its identities, its shape, its limits, its way over the wire."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal, localcontext
from math import isfinite, log

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.curve import RHO_MAX, RHO_MIN, Curve


def curve(rho: float = 0.3, *, a: float = 0.8, c: float = 6.0, width: float = 0.25) -> Curve:
    return Curve(a=a, b=(1.0 - rho) * a / c, c=c, s=width * c)


curves = st.builds(
    curve,
    st.floats(RHO_MIN, RHO_MAX),
    a=st.floats(1e-3, 1e3),
    c=st.floats(0.05, 500.0),
    width=st.floats(0.01, 4.0),
)
loads_in_knees = st.floats(0.0, 100.0)


def exact_rate(curve: Curve, n: Decimal) -> Decimal:
    """n / l(n) from the definition, in the precision of the surrounding decimal context."""
    a, b, c, s = (Decimal(x) for x in (curve.a, curve.b, curve.c, curve.s))
    return n / (a + b * s * (1 + ((n - c) / s).exp()).ln())


@settings(derandomize=True, deadline=None)
@given(curves, loads_in_knees)
def test_gradient_is_the_inverse_slope_of_the_rate(curve: Curve, x: float) -> None:
    n, step = Decimal(x * curve.c), Decimal("1e-25")
    with localcontext() as context:
        context.prec = 80
        slope = (exact_rate(curve, n + step) - exact_rate(curve, n - step)) / (2 * step)
        expected = float(1 / slope)
    # 1 / ρ at most 20 multiplies the rounding of b c against a.
    assert curve.gradient_s(float(n)) == pytest.approx(expected, rel=1e-12)


@settings(derandomize=True, deadline=None)
@given(curves, loads_in_knees)
def test_gradient_and_slope_agree_with_finite_differences_of_the_latency(curve: Curve, x: float) -> None:
    n, h = (x + 0.01) * curve.c, 1e-5 * curve.s
    slope = (curve.latency_s(n + h) - curve.latency_s(n - h)) / (2 * h)
    # Two latencies differ by b h at least in their last digits: eps l / (b h).
    noise = 1e-15 * curve.latency_s(n) / h
    assert curve.slope(n) == pytest.approx(slope, rel=1e-8, abs=noise)


def test_an_idle_server_costs_its_own_latency() -> None:
    assert curve().gradient_s(0.0) == pytest.approx(curve().latency_s(0.0), rel=1e-15)


def test_at_the_knee_softplus_is_ln_2_and_the_slope_half() -> None:
    at = curve()
    latency_s = at.a + at.b * at.s * log(2.0)
    assert at.latency_s(at.c) == pytest.approx(latency_s, rel=1e-15)
    assert at.slope(at.c) == pytest.approx(at.b / 2, rel=1e-15)
    assert at.gradient_s(at.c) == pytest.approx(latency_s**2 / (latency_s - at.c * at.b / 2), rel=1e-14)


@pytest.mark.parametrize("n", [1e3, 1e6, 1e9])
def test_far_past_the_knee_nothing_cancels(n: float) -> None:
    at = curve(rho=RHO_MIN)
    straight_s = at.a + at.b * (n - at.c)
    assert at.latency_s(n) == pytest.approx(straight_s, rel=1e-12)
    assert at.gradient_s(n) == pytest.approx(straight_s**2 / (at.a * at.rho), rel=1e-12)


@settings(derandomize=True, deadline=None)
@given(curves, loads_in_knees, st.floats(0.01, 10.0))
def test_rate_rises_strictly_under_its_bound(curve: Curve, x: float, further: float) -> None:
    low, high = x * curve.c, (x + further) * curve.c
    assert curve.rate_per_server(low) < curve.rate_per_server(high) < curve.capacity_per_server()


def test_rate_approaches_the_capacity() -> None:
    assert curve().rate_per_server(1e9) == pytest.approx(curve().capacity_per_server(), rel=1e-6)


@pytest.mark.parametrize("width", [1e-6, 1e-3, 100.0])
@pytest.mark.parametrize("n", [0.0, 1e-300, 5.999, 6.0, 6.001, 1e12])
def test_no_load_overflows_a_sharp_or_blunt_knee(width: float, n: float) -> None:
    at = curve(width=width)
    values = (at.latency_s(n), at.gradient_s(n), at.slope(n), at.rate_per_server(n))
    assert all(isfinite(v) and v >= 0.0 for v in values)
    assert at.gradient_s(n) > 0.0


def test_json_carries_every_field() -> None:
    sent = msgspec.structs.replace(curve(), version=7, sd_log_gradient=0.11, n_min=0.5, n_max=14.25, samples=1800.5)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Curve) == sent


@pytest.mark.parametrize(
    "numbers",
    [
        {"a": 1.0, "b": 1.0, "c": 2.0, "s": 0.5},  # throughput would fall past the knee
        {"a": 1.0, "b": 0.01, "c": 1.0, "s": 0.5},  # no knee at all
        {"a": 0.0, "b": 0.1, "c": 2.0, "s": 0.5},
        {"a": 1.0, "b": 0.25, "c": 2.0, "s": -0.5},
        {"a": 1.0, "b": 0.25, "c": 2.0, "s": 1e-9},
    ],
)
def test_numbers_that_are_no_curve_are_refused_here_and_off_the_wire(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="curve:"):
        Curve(a=numbers["a"], b=numbers["b"], c=numbers["c"], s=numbers["s"])
    with pytest.raises(msgspec.ValidationError, match="curve:"):
        msgspec.json.decode(msgspec.json.encode(numbers), type=Curve)


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        Curve(a=float("nan"), b=0.1, c=1.0, s=1.0)


def test_perturbing_scales_the_natural_parameters() -> None:
    before, after = curve(rho=0.5), curve(rho=0.5).perturbed(1.1)
    assert (after.a, after.c, after.s) == pytest.approx((before.a * 1.1, before.c * 1.1, before.s * 1.1))
    assert after.b == pytest.approx(before.b * 1.1)


@settings(derandomize=True, deadline=None)
@given(curves, st.floats(0.05, 2.0))
def test_perturbing_never_breaks_the_shape(curve: Curve, factor: float) -> None:
    after = curve.perturbed(factor)
    assert RHO_MIN - 1e-9 <= after.rho <= RHO_MAX + 1e-9
    assert after.a == curve.a * factor


def test_a_root_evaluates_curves_without_numpy() -> None:
    script = "import sys, dlbctl.core.curve; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
