"""Marginal effect of one more request on everybody's latency: 1/mu'(N) plus round trip.

DLB section 3.2.3. Its equilibrium is the optimum of the mean latency; it asks the most of the curve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "latency"
NEEDS = "a curve whose slope is surer"

# Past this posterior SD of ln(1/mu') the slope is closer to a guess than to a measurement.
MAX_SD_LOG_GRADIENT = 0.5


def cost(view: View) -> float:
    """c = 1/mu'(N) + 2 tau, seconds. Needs a curve (`ready`)."""
    assert view.curve is not None
    return view.curve.gradient_s(view.load) + 2.0 * view.tau_s


def ready(view: View) -> bool:
    """Whether there is a curve whose slope is known well enough."""
    return view.curve is not None and view.curve.sd_log_gradient <= MAX_SD_LOG_GRADIENT
