"""Waiting work in seconds per unit of weight: prefill and decode still owed to earlier requests.

DLB section 3.1: the leaf balances the number of tokens waiting to be processed in each queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = ""
NEEDS = ""
CAN_BE_ZERO = True


def cost(view: View) -> float:
    """c = waiting work / weight, seconds."""
    return view.work_s / view.weight


def ready(view: View) -> bool:  # noqa: ARG001 - work is counted here
    """Always: the tier counts the work it sent."""
    return True
