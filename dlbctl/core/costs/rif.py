"""Requests in flight per server, N/k: needs no model and no clock.

DLB section 3.2.3. An instance of weighted least connections; blind to hardware and distance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "requests/server"
FALLBACK = ""
NEEDS = ""
CAN_BE_ZERO = True


def cost(view: View) -> float:
    """c = N/k, requests per server."""
    return view.load


def ready(view: View) -> bool:  # noqa: ARG001 - a count is always known
    """Always: a count is always known."""
    return True
