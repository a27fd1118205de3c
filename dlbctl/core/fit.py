"""The fit of a latency curve to bins of samples: Levenberg-Marquardt, one iteration per call.

A fit shares its process with requests, so the caller spreads its steps over timer events (some 100 µs each)
instead of calling a solver that keeps the loop for 3 to 20 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbctl.core.bins import Bin
from dlbctl.core.curve import RHO_MAX, RHO_MIN, Belief, Curve

Floats = NDArray[np.float64]

SAMPLES_MIN = 30.0
STEPS_MAX = 60

# Where a step may lead: wide enough for any latency, narrow enough for exp().
_THETA_MIN = np.array([-25.0, -25.0, -5.0, -12.0])
_THETA_MAX = np.array([25.0, 25.0, 2.0, 12.0])
# What is believed of any cell at all, beside what its own samples suggest.
WEAK_SD = (2.0, 1.0, 0.7, 1.0)
_LOAD_MIN = 1e-6  # has a logarithm, where an idle cell's load has none
_DAMPING_START, _DAMPING_MAX = 0.1, 1e9
# The slope of the cost left along any parameter, in posterior SDs: one percent of the noise.
_GRADIENT_TOLERANCE = 1e-2

# A bin's own CV is low when by chance its mean is, and would give low means more weight: bins share one,
# but for what many samples say.
_CV_SHARED_SAMPLES = 100.0
# Identical latencies say nothing about how far the curve's form is from the truth.
_CV_MIN = 0.05


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a fit came to. Without a curve, `reason` says why; `cost` is half the summed robust loss."""

    curve: Curve | None
    converged: bool
    cost: float
    steps: int
    reason: str = ""

    @property
    def sd_log_gradient(self) -> float:
        """Posterior SD of ln(1/μ') at the load the fit was asked about; infinite without a curve."""
        return self.curve.sd_log_gradient if self.curve else float("inf")


def weak_prior(bins: Sequence[Bin]) -> Belief:
    """A belief that settles only what the data leaves open: the knee, if it was never passed, is not far off.

    Below the knee nothing shows where it is, and a guess beyond all loads seen would trust a cell with what
    it was never seen to bear. The SD of the gradient tells that it is a guess.
    """
    loads = sorted(max(b.n, _LOAD_MIN) for b in bins)
    knee = sqrt(loads[len(loads) // 2] * loads[-1])
    return Belief((log(_idle_latency_s(bins)), log(knee), log(0.25), -1.0), WEAK_SD)


@dataclass(frozen=True, slots=True)
class _Point:
    """A place the fit has looked at: residuals in SDs, and their derivatives by θ, one row each."""

    theta: Floats
    residuals: Floats
    jacobian: Floats
    cost: float


class CurveFit:
    """One fit: `while not fit.step(): ...`, then `fit.result()`.

    bins: from SampleStore.bins or pooled. prior: what is believed of such cells, which makes a curve of whatever bins,
    even of none; None for weak_prior(bins). warm: the cell's last curve; the
    fit starts there unless the prior's mean is better, and the new curve takes the next version.
    at_n: the load per server where the SD of the gradient is wanted, by default the mean load of the bins.

    Minimises half of sum softL1(r²) over the bins plus half of sum ((θ - θ0)/σ)², with
    r = (ln l(n) - ln ȳ - v/2) / sqrt(v), v = CV²/n_eff, and softL1(z) = 2 (sqrt(1 + z) - 1). The loss is
    robust on bin means, never on single latencies: there it would fit their median.
    """

    def __init__(
        self,
        bins: Sequence[Bin],
        prior: Belief | None = None,
        warm: Curve | None = None,
        *,
        at_n: float | None = None,
    ) -> None:
        self._reason = "" if prior else _refusal(bins)
        self._version = warm.version + 1 if warm else 1
        self._steps = 0
        self._converged = False
        self._done = bool(self._reason)
        if self._done:
            return
        prior = prior or weak_prior(bins)
        self._n = np.array([b.n for b in bins])
        variance = _relative_variance(bins)
        # E[ln ȳ] = ln E[y] - var/2 to second order: the logarithm makes too little of a mean of few.
        self._log_latency = np.log([b.latency_s for b in bins]) + 0.5 * variance
        self._root_weight = 1.0 / np.sqrt(variance)
        self._prior_mean = np.array(prior.mean)
        self._prior_precision = np.array(prior.sd) ** -2.0
        self._samples = sum(b.n_eff for b in bins)
        self._at_n = at_n if at_n is not None else _mean_load(bins) if bins else exp(prior.mean[1])
        self._damping = _DAMPING_START
        starts = [_boxed(self._prior_mean)] + ([_theta(warm)] if warm else [])
        self._best = min((self._evaluate(theta) for theta in starts), key=lambda point: point.cost)

    def __repr__(self) -> str:
        state = self._reason or ("converged" if self._converged else "done" if self._done else "running")
        return f"CurveFit(steps={self._steps}, {state})"

    def step(self) -> bool:
        """One Levenberg-Marquardt iteration; true once the fit is over."""
        if self._done:
            return True
        self._steps += 1
        gradient, hessian = self._normal_equations()
        diagonal = hessian.diagonal()
        if np.max(np.abs(gradient) / np.sqrt(diagonal)) < _GRADIENT_TOLERANCE:
            return self._finish(converged=True)
        move = np.linalg.solve(hessian + np.diag(self._damping * diagonal), -gradient)
        here = self._best.theta
        theta = _boxed(here + move)
        move = theta - here
        self._judge(self._evaluate(theta), promised=float(-(gradient + 0.5 * hessian @ move) @ move))
        return self._done or (self._steps >= STEPS_MAX and self._finish(converged=False))

    def _judge(self, trial: _Point, promised: float) -> None:
        """Take a step that lowers the cost; trust the quadratic model by how well it kept its promise."""
        if trial.cost < self._best.cost:
            kept = (self._best.cost - trial.cost) / max(promised, 1e-300)
            self._best = trial
            # The model ignores the curve's own bending: trusted for going down at all, it can overshoot to
            # and fro for 60 steps.
            self._damping *= 4.0 if kept < 0.75 else 0.25 if kept > 0.9 else 1.0
        else:
            self._damping *= 8.0
            if self._damping > _DAMPING_MAX:
                # No direction goes down at any length: a minimum to within rounding.
                self._finish(converged=True)

    def _finish(self, *, converged: bool) -> bool:
        self._done, self._converged = True, converged
        return True

    def result(self) -> FitResult:
        """The curve so far (after the last step, the fitted one), or the reason why there is none."""
        if self._reason:
            return FitResult(None, converged=False, cost=0.0, steps=0, reason=self._reason)
        curve = msgspec.structs.replace(
            _curve(self._best.theta),
            version=self._version,
            sd_log_gradient=self._sd_log_gradient(),
            n_min=float(self._n.min(initial=self._at_n)),
            n_max=float(self._n.max(initial=0.0)) or self._at_n,
            samples=self._samples,
        )
        return FitResult(curve, self._converged, self._best.cost, self._steps)

    def belief(self) -> Belief | None:
        """θ as it is now and its posterior SDs; None without a curve."""
        if self._reason:
            return None
        _, hessian = self._normal_equations()
        sd = np.sqrt(np.linalg.inv(hessian).diagonal())
        return Belief(tuple(self._best.theta.tolist()), tuple(sd.tolist()))

    def _evaluate(self, theta: Floats) -> _Point:
        log_latency, jacobian = _log_latency(theta, self._n)
        residuals = (log_latency - self._log_latency) * self._root_weight
        robust = np.sum(np.sqrt(1.0 + residuals**2) - 1.0)
        belief = 0.5 * np.sum(self._prior_precision * (theta - self._prior_mean) ** 2)
        return _Point(theta, residuals, jacobian * self._root_weight, float(robust + belief))

    def _normal_equations(self) -> tuple[Floats, Floats]:
        """Gradient and Gauss-Newton Hessian of the cost, each bin reweighted by the slope of its loss."""
        best = self._best
        scale = 1.0 / np.sqrt(1.0 + best.residuals**2)
        belief = self._prior_precision * (best.theta - self._prior_mean)
        gradient = best.jacobian @ (scale * best.residuals) + belief
        hessian = (best.jacobian * scale) @ best.jacobian.T + np.diag(self._prior_precision)
        return gradient, hessian

    def _sd_log_gradient(self) -> float:
        """Delta method: the posterior covariance of θ seen along the derivative of ln(1/μ'(at_n))."""
        _, hessian = self._normal_equations()
        theta, nudge = self._best.theta, 1e-4
        direction = np.array(
            [
                log(_curve(theta + e).gradient_s(self._at_n)) - log(_curve(theta - e).gradient_s(self._at_n))
                for e in np.eye(4) * nudge
            ]
        ) / (2.0 * nudge)
        return sqrt(max(float(direction @ np.linalg.solve(hessian, direction)), 0.0))


def _log_latency(theta: Floats, n: Floats) -> tuple[Floats, Floats]:
    """ln l(n) and its derivatives by θ, one row each.

    In x = n/c and r = s/c the curve is l = a (1 + φ), φ = (1 - ρ) r softplus((x - 1)/r).
    """
    log_a, log_c, log_r, logit = theta.tolist()
    r = exp(log_r)
    sigma = _sigmoid(logit)
    bend = 1.0 - _rho(logit)
    x = n / exp(log_c)
    u = (x - 1.0) / r
    e = np.exp(-np.abs(u))
    softplus = np.maximum(u, 0.0) + np.log1p(e)
    p = np.where(u > 0.0, 1.0, e) / (1.0 + e)
    entropy = np.log1p(e) + np.abs(u) * e / (1.0 + e)
    phi = bend * r * softplus
    d_rho = (RHO_MAX - RHO_MIN) * sigma * (1.0 - sigma)
    jacobian = np.stack((1.0 + phi, -bend * p * x, bend * r * entropy, -d_rho * r * softplus)) / (1.0 + phi)
    log_latency: Floats = log_a + np.log1p(phi)
    return log_latency, jacobian


def _curve(theta: Floats) -> Curve:
    log_a, log_c, log_r, logit = theta.tolist()
    a, c = exp(log_a), exp(log_c)
    return Curve(a=a, b=(1.0 - _rho(logit)) * a / c, c=c, s=exp(log_r) * c)


def _theta(curve: Curve) -> Floats:
    share = min(max((curve.rho - RHO_MIN) / (RHO_MAX - RHO_MIN), 1e-5), 1.0 - 1e-5)
    theta = [log(curve.a), log(curve.c), log(curve.s / curve.c), log(share / (1.0 - share))]
    return _boxed(np.array(theta))


def _boxed(theta: Floats) -> Floats:
    boxed: Floats = np.clip(theta, _THETA_MIN, _THETA_MAX)
    return boxed


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + exp(-x))


def _rho(logit: float) -> float:
    return RHO_MIN + (RHO_MAX - RHO_MIN) * _sigmoid(logit)


def _idle_latency_s(bins: Sequence[Bin]) -> float:
    """Mean latency of the fifth of the bins with the lowest loads."""
    lowest = sorted(bins, key=lambda b: b.n)[: max(len(bins) // 5, 1)]
    return sum(b.n_eff * b.latency_s for b in lowest) / sum(b.n_eff for b in lowest)


def _mean_load(bins: Sequence[Bin]) -> float:
    return sum(b.n_eff * b.n for b in bins) / sum(b.n_eff for b in bins)


def _relative_variance(bins: Sequence[Bin]) -> Floats:
    """Each bin's variance of ln ȳ, CV²/n_eff, its CV drawn toward the one of all bins."""
    if not bins:
        return np.empty(0)
    n_eff = np.array([b.n_eff for b in bins])
    squared = np.array([b.cv for b in bins]) ** 2
    shared = float(np.average(squared, weights=n_eff))
    drawn = (n_eff * squared + _CV_SHARED_SAMPLES * shared) / (n_eff + _CV_SHARED_SAMPLES)
    variance: Floats = np.maximum(drawn, _CV_MIN**2) / n_eff
    return variance


def _refusal(bins: Sequence[Bin]) -> str:
    if not bins or (samples := sum(b.n_eff for b in bins)) < SAMPLES_MIN:
        return f"{samples if bins else 0.0:.3g} effective samples, {SAMPLES_MIN:.0f} needed"
    loads = [b.n for b in bins]
    if max(loads) - min(loads) <= 1e-6 * max(loads):
        return f"one load only ({loads[0]:.3g} per server)"
    return ""
