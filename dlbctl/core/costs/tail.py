"""What 19 of 20 requests stay under at the present load: the 95th percentile's curve plus round trip.

For an objective on p95 rather than on the mean. A cell whose latencies vary more is dearer than its mean says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "latency"
NEEDS = "a curve of the 95th percentile"


def cost(view: View) -> float:
    """c = l95(N/k) + 2 tau, seconds. Needs the curve (`ready`)."""
    assert view.tail is not None
    return view.tail.latency_s(view.load) + 2.0 * view.tau_s


def ready(view: View) -> bool:
    """Whether the target's leaves have a curve of the percentile."""
    return view.tail is not None
