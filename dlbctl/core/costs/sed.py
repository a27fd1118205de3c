"""Expected delay of a queue that works at full rate: (N + 1)/mu plus round trip.

Shortest expected delay (DLB's reference [3]; in Linux' IPVS `sed`, with weights for rates). mu is what all servers of
the target together end per second when they are busy: k times the most that the curve has one do. Where a request
takes its time on an idle server too, as an answer's tokens do, this says too little; `latency` has the whole curve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "rif"
NEEDS = "a latency curve"


def cost(view: View) -> float:
    """c = (N + 1)/mu + 2 tau, seconds. Needs a curve (`ready`)."""
    assert view.curve is not None
    # (N + 1)/(k m) = (N/k + 1/k)/m for a server's m.
    return (view.load + 1.0 / view.weight) / view.curve.capacity_per_server() + 2.0 * view.tau_s


def ready(view: View) -> bool:
    """Whether the target's leaves have a curve."""
    return view.curve is not None
