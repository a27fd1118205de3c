"""What cells with the same hardware teach one another of their curves, and how a leaf comes to know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log, sqrt
from random import Random

import numpy as np
import pytest

from dlbctl.core.bins import Bin
from dlbctl.core.curve import RHO_MAX, RHO_MIN, Belief, Curve
from dlbctl.core.estimator import Estimator
from dlbctl.core.events import EndpointState, State
from dlbctl.core.fit import WEAK_SD, CurveFit
from dlbctl.core.fleet_prior import SD_MIN, HardwareClass
from dlbctl.core.news import FRESH_S, News
from dlbctl.core.samples import SampleStore
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.tier import Tier

THETA = (log(0.8), log(6.0), log(0.25), -1.2)
CV = 0.8
LOADS = np.linspace(1.0, 16.0, 31)
CELLS, FLEETS = 8, 3


def curve(theta: Sequence[float]) -> Curve:
    a, c, width = (exp(x) for x in theta[:3])
    rho = RHO_MIN + (RHO_MAX - RHO_MIN) / (1.0 + exp(-theta[3]))
    return Curve(a=a, b=(1.0 - rho) * a / c, c=c, s=width * c)


def sampled(seed: int, truth: Curve, high: float) -> list[Bin]:
    """2,000 log-normal latencies at loads uniform from 1 to `high`."""
    rng, variance = Random(seed), log(1.0 + CV * CV)
    kept = SampleStore(rng, capacity=8000)
    for _ in range(2000):
        n = rng.uniform(1.0, high)
        kept.add(0.0, 0.0, n, truth.latency_s(n) * rng.lognormvariate(-variance / 2.0, sqrt(variance)))
    return kept.bins(0.0)


def fitted(bins: list[Bin], prior: Belief | None = None) -> CurveFit:
    fit = CurveFit(bins, prior)
    while not fit.step():
        pass
    return fit


def curve_of(fit: CurveFit) -> Curve:
    found = fit.result().curve
    assert found is not None
    return found


def belief_of(fit: CurveFit) -> Belief:
    found = fit.belief()
    assert found is not None
    return found


@cache
def fleet(number: int, spread: float) -> tuple[list[Curve], list[Belief]]:
    """Cells whose θ are normal around the fleet's, by so much in ln a, ln c and the logit, and what each has found."""
    rng = np.random.default_rng(number)
    sd = spread * np.array([1.0, 1.0, 0.5, 1.0])
    truths = [curve((np.array(THETA) + sd * rng.normal(size=4)).tolist()) for _ in range(CELLS)]
    return truths, [belief_of(fitted(sampled(100 * number + i, truth, 16.0))) for i, truth in enumerate(truths)]


def errors(spread: float, high: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean error of l (relative) and of ln(1/mu') over loads 1 to 16: bins alone, and with what others know."""
    rows = []
    for number in range(FLEETS):
        truths, beliefs = fleet(number, spread)
        alike = HardwareClass({str(i): belief for i, belief in enumerate(beliefs)})
        for i, truth in enumerate(truths[:3]):
            bins = sampled(100 * number + i, truth, high)
            alone, together = curve_of(fitted(bins)), curve_of(fitted(bins, alike.prior(str(i))))
            rows.append([*error(alone, truth), *error(together, truth)])
    a, b, c, d = np.mean(rows, axis=0).tolist()
    return (a, b), (c, d)


def error(found: Curve, truth: Curve) -> tuple[float, float]:
    in_latency = [abs(found.latency_s(n) / truth.latency_s(n) - 1.0) for n in LOADS]
    in_gradient = [abs(log(found.gradient_s(n) / truth.gradient_s(n))) for n in LOADS]
    return float(np.mean(in_latency)), float(np.mean(in_gradient))


def test_with_all_loads_seen_other_cells_sharpen_a_curve() -> None:
    """CV 0.8, 9 cells of 3 fleets that differ by 10 %. Bars: 2.4 % and .29 alone, 1.9 % and .11 together."""
    alone, together = errors(0.1, 16.0)
    assert alone[0] < 0.024
    assert alone[1] < 0.29
    assert together[0] < 0.019
    assert together[1] < 0.11


def test_of_loads_never_seen_other_cells_tell() -> None:
    """Only n in [1, 5] seen, tested to 16. Bars: 12.7 % and .80 alone, 4.5 % and .13 together."""
    alone, together = errors(0.0, 5.0)
    assert alone[0] < 0.127
    assert alone[1] < 0.80
    assert together[0] < 0.045
    assert together[1] < 0.13


def test_fleets_that_differ_are_believed_only_so_far() -> None:
    """Cells that differ by 30 %: what others know spoils nothing where a cell has seen for itself."""
    alone, together = errors(0.3, 16.0)
    assert together[0] < 1.1 * alone[0]


def like(theta: Sequence[float], sd: float) -> Belief:
    a, c, width, logit = theta
    return Belief((a, c, width, logit), (sd, sd, sd, sd))


def prior_of(cell: str, own: Mapping[str, Belief | None]) -> Belief:
    found = HardwareClass(own).prior(cell)
    assert found is not None
    return found


def test_a_cells_own_estimate_is_no_part_of_its_prior() -> None:
    own: dict[str, Belief | None] = {name: like((0.0, 0.0, 0.0, 0.0), 0.05) for name in "abc"}
    own |= {"odd": like((9.0, 9.0, 9.0, 9.0), 0.05), "new": None}
    assert prior_of("odd", own).mean == pytest.approx((0.0,) * 4, abs=1e-9)
    assert prior_of("new", own).mean == pytest.approx((9.0 / 4.0,) * 4)
    assert repr(HardwareClass(own)) == "<HardwareClass, 4 cells have a curve>"


def test_one_other_cell_is_no_fleet() -> None:
    alike = HardwareClass({"a": like(THETA, 0.1), "b": like(THETA, 0.1), "c": None})
    assert (alike.prior("a"), alike.prior("b")) == (None, None)
    assert alike.prior("c") is not None
    assert HardwareClass({"a": None}).prior("a") is None


def test_the_spread_between_cells_is_what_their_errors_do_not_explain() -> None:
    rng = np.random.default_rng(1)
    between, error_sd = 0.5, 0.3
    own = {str(i): like(rng.normal(0.0, sqrt(between**2 + error_sd**2), 4).tolist(), error_sd) for i in range(400)}
    assert prior_of("0", own).sd == pytest.approx((between,) * 4, rel=0.12)
    alike = {str(i): like(rng.normal(0.0, 0.1, 4).tolist(), 0.1) for i in range(400)}
    assert prior_of("0", alike).sd == pytest.approx((SD_MIN,) * 4, rel=0.05)


def test_few_cells_are_believed_less_and_beliefs_without_samples_not_added_up() -> None:
    few, many = (prior_of("0", {str(i): like(THETA, 0.05) for i in range(count)}) for count in (3, 30))
    assert few.sd[0] > 1.5 * many.sd[0]
    # None has ever seen a knee: all have the weak prior's guess, and that a hundred guess alike says nothing.
    blind = prior_of("0", {str(i): Belief(THETA, WEAK_SD) for i in range(100)})
    assert all(sd >= weak for sd, weak in zip(blind.sd, WEAK_SD, strict=True))


# -- how it comes to a leaf --------------------------------------------------------------------------------

FLEET = like(THETA, 0.1)


def work(estimator: Estimator, now_s: float, prior: Belief | None) -> None:
    estimator.begin(now_s, prior=prior)
    while not estimator.due(now_s + 5.0):
        now_s = estimator.work(now_s)


def test_a_cell_that_has_seen_nothing_has_the_fleets_curve() -> None:
    estimator = Estimator(Random(1))
    work(estimator, 10.0, FLEET)
    found = estimator.curve
    assert found is not None
    assert (found.own, found.samples, found.version) == (None, 0.0, 1)
    for n in LOADS:
        assert found.latency_s(n) == pytest.approx(curve(THETA).latency_s(n), rel=1e-6)
    assert 0.05 < found.sd_log_gradient < 0.5


def test_what_a_cell_tells_of_itself_was_not_shrunk() -> None:
    """Else the fleet would agree with itself more with each round, whatever is measured."""
    slow = curve((THETA[0] + 1.0, *THETA[1:]))
    told = []
    for prior in (None, FLEET):
        estimator, rng = Estimator(Random(1)), Random(2)
        for _ in range(300):
            n = rng.uniform(1.0, 16.0)
            estimator.add(0.0, 0.0, n, slow.latency_s(n) * rng.lognormvariate(-0.25, 0.7))
        work(estimator, 0.0, prior)
        assert estimator.curve is not None
        told.append(estimator.curve)
    alone, shrunk = told
    assert shrunk.own == alone.own
    assert shrunk.latency_s(2.0) < alone.latency_s(2.0)


def root(*hardware: str) -> Tier:
    """In front of cells a, b, ... of this hardware."""
    names = "abcdefgh"[: len(hardware)]
    targets = tuple(
        TargetSettings(name, (f"http://{name}:1",), hardware=kind) for name, kind in zip(names, hardware, strict=True)
    )
    tier = Tier(TierSettings("root", "here", targets), "r00t")
    for place, name in enumerate(names):
        made = Curve(a=0.8, b=0.096, c=6.0, s=1.5, version=1, own=like((float(place), *THETA[1:]), 0.05))
        state = State(endpoints={"m": EndpointState(k=1.0, curve_version=1, curve=made)})
        tier.state_reported(0.0, name, f"http://{name}:1", state, 0.01)
    return tier


def test_a_root_tells_each_leaf_what_cells_of_its_hardware_are_like() -> None:
    tier = root("x", "x", "x", "y", "y", "")
    told = {name: tier.news(0.0, name, f"http://{name}:1").endpoints["m"].prior for name in "abcdef"}
    assert [name for name, prior in told.items() if prior] == ["a", "b", "c"]
    assert told["a"] is not None
    assert told["a"].mean == pytest.approx((1.5, *THETA[1:]))


def test_a_leaf_fits_under_what_it_was_last_told_while_its_root_is_there() -> None:
    news = root("", "", "").news(0.0, "a", "http://a:1")
    leaf = Tier(TierSettings("leaf", "a", (TargetSettings("s", ("http://s:1",), ("m",)),)), "b00t")
    leaf.pinged(1.0, "here", 0.01, news)
    assert leaf.heard.prior(1.0, "m") == news.endpoints["m"].prior is not None
    leaf.pinged(2.0, "there", 0.02, News("other", {}))
    assert leaf.heard.prior(2.0, "m") == news.endpoints["m"].prior
    assert leaf.heard.prior(1.1 + FRESH_S, "m") is None
    at_s = 2.0
    for _ in range(200):
        at_s = leaf.timer_fired(at_s).at_s
    state = leaf.report(at_s).endpoints["m"]
    assert state.curve is not None
    assert (state.curve_version, state.curve.own) == (1, None)
