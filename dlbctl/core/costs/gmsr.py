"""Marginal effect of one more request on latencies within the target, as if all were equally near: 1/mu'(N).

The greatest marginal service rate of DLB's reference [43], whose servers are heterogeneous and no network apart;
DLB's `gradient` is this plus the round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.core.costs import gradient

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "rif"  # the nearest that does not look at distance either
NEEDS = "a curve whose slope is surer"


def cost(view: View) -> float:
    """c = 1/mu'(N), seconds. Needs a curve (`ready`)."""
    assert view.curve is not None
    return view.curve.gradient_s(view.load)


def ready(view: View) -> bool:
    """Whether there is a curve whose slope is known well enough."""
    return gradient.ready(view)
