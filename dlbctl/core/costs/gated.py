"""Marginal effect as far as its slope is known, expected latency as far as it is not.

Between `latency` and `gradient` (DLB section 3.2.3), both seconds at the same load, by the confidence in the curve: the
logarithm of the cost is w ln(1/mu'(N)) + (1 - w) ln l(N), w = 1 / (1 + (sd / 0.5)^2) with sd the posterior SD of
ln(1/mu'). `gradient` asks all cells for a curve that is sure, and uses none of them while one is not; here each cell
goes by what is known of it.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

from dlbctl.core.costs.gradient import MAX_SD_LOG_GRADIENT

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "rif"
NEEDS = "a latency curve"


def cost(view: View) -> float:
    """c between l(N/k) and 1/mu'(N), plus 2 tau, seconds. Needs a curve (`ready`)."""
    curve = view.curve
    assert curve is not None
    latency_s = curve.latency_s(view.load)
    doubt = curve.sd_log_gradient / MAX_SD_LOG_GRADIENT
    confidence = 1.0 / (1.0 + doubt * doubt)
    return latency_s * exp(confidence * log(curve.gradient_s(view.load) / latency_s)) + 2.0 * view.tau_s


def ready(view: View) -> bool:
    """Whether there is a curve."""
    return view.curve is not None
