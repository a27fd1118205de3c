"""One cell's latency curve: mean latency, throughput and marginal cost as functions of load per server.

A root evaluates it for every cell at every probe round and it travels as JSON on the state stream: so it
holds four plain numbers with what is known about them; their arithmetic is in `softplus`.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from dlbctl.core import softplus

# 1 - b c / a: what is left of the unloaded latency once the straight part is drawn back to an idle server.
# At 0 throughput stops growing past the knee and the marginal cost is infinite; at 1 there is no knee.
RHO_MIN = 0.05
RHO_MAX = 0.95
_RHO_ROUNDING = 1e-9
_KNEE_WIDTH_MIN = 1e-6  # s / c: sharper than any load step that can be seen, and far from overflow


class Belief(msgspec.Struct, frozen=True):
    """Independent normal beliefs about a curve's θ = (ln a, ln c, ln(s/c), logit of ρ in its box).

    Raises ValueError, also when decoded, for numbers that are none.
    """

    mean: tuple[float, float, float, float]
    sd: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        if not all(map(isfinite, (*self.mean, *self.sd))) or min(self.sd) <= 0.0:
            raise ValueError("belief: means must be finite, and deviations positive too")


class Curve(msgspec.Struct, frozen=True):
    """l(n) = a + b s softplus((n - c) / s), for n requests in flight per server (DLB section 3.3).

    a: latency of an idle server [s]. b: slope past the knee [s per request per server]. c: place of the knee
    and s: its width [requests per server]. The rest describes the fit: `version` grows with each curve of a
    cell; `sd_log_gradient` is the posterior SD of ln(1/μ'(n)) where the cell worked when it was fitted;
    `n_min`..`n_max` is the range of load seen and `samples` the effective number of samples. `own` is what these alone
    say of θ, without what other cells are like; None where they are too few.

    Raises ValueError, also when decoded (msgspec.ValidationError), for numbers that are no curve: μ(n) =
    n/l(n) rises strictly and stays bounded, as the paper's Assumption 1 asks, only if a > b c.
    """

    a: float
    b: float
    c: float
    s: float
    version: int = 0
    sd_log_gradient: float = 0.0
    n_min: float = 0.0
    n_max: float = 0.0
    samples: float = 0.0
    own: Belief | None = None

    def __post_init__(self) -> None:
        if not all(isfinite(x) and x > 0 for x in (self.a, self.b, self.c, self.s)):
            raise ValueError("curve: a, b, c and s must be finite and positive")
        if self.s < _KNEE_WIDTH_MIN * self.c:
            raise ValueError("curve: the knee is too sharp (s / c under 1e-6)")
        if not RHO_MIN - _RHO_ROUNDING <= self.rho <= RHO_MAX + _RHO_ROUNDING:
            raise ValueError(f"curve: 1 - b c / a is {self.rho:.4g}, outside [{RHO_MIN}, {RHO_MAX}]")

    @property
    def rho(self) -> float:
        """1 - b c / a, the saturation knob, in [RHO_MIN, RHO_MAX]."""
        return 1.0 - self.b * self.c / self.a

    def latency_s(self, n: float) -> float:
        """Mean latency [s] of a request that meets n requests in flight per server, n >= 0."""
        return softplus.latency_s(self.a, self.b, self.c, self.s, n)

    def slope(self, n: float) -> float:
        """l'(n) [s per request per server]."""
        return softplus.slope(self.b, self.c, self.s, n)

    def rate_per_server(self, n: float) -> float:
        """μ(n) = n / l(n) [requests/s per server], by Little's law: strictly increasing in n."""
        return n / self.latency_s(n)

    def gradient_s(self, n: float) -> float:
        """1/μ'(n) [s]: what one more request/s on a server adds to the total time in flight."""
        return softplus.gradient_s(self.a, self.b, self.c, self.s, n)

    def capacity_per_server(self) -> float:
        """sup μ = 1/b [requests/s per server]: the straight part's slope alone decides it."""
        return 1.0 / self.b

    def scaled(self, factor: float) -> Curve:
        """The curve with every latency, and so every marginal cost, multiplied by factor > 0."""
        return msgspec.structs.replace(self, a=self.a * factor, b=self.b * factor)

    def perturbed(self, factor: float) -> Curve:
        """The curve with every natural parameter multiplied by factor > 0 (DLB section 5.4's error).

        b c / a moves with the factor, so b is bent back where it would leave the box.
        """
        a, c = self.a * factor, self.c * factor
        b_unit = a / c
        b = min(max(self.b * factor, (1.0 - RHO_MAX) * b_unit), (1.0 - RHO_MIN) * b_unit)
        return msgspec.structs.replace(self, a=a, b=b, c=c, s=self.s * factor)
