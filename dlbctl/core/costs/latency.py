"""Expected end-to-end latency at the present load: learned curve plus round trip.

DLB section 3.2.3. Its equilibrium is Wardrop's: no request could do better elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "rif"
NEEDS = "a latency curve"


def cost(view: View) -> float:
    """c = l(N/k) + 2 tau, seconds. Needs a curve (`ready`)."""
    assert view.curve is not None
    return view.curve.latency_s(view.load) + 2.0 * view.tau_s


def ready(view: View) -> bool:
    """Whether the target's leaves have a curve."""
    return view.curve is not None
