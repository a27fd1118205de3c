"""The marginal effect on everybody's latency, and what this prompt takes to read there beyond a usual one.

DLB's gradient and GORGO's prefill term in one cost of seconds: c = 1/mu'(N) + 2 tau + P (u - u0), for u prompt tokens
where u0 are usual and P the cell's seconds per token. The curve covers the usual prompt already, so only the rest is
added. Cells that read faster so get the long prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.core.costs import gradient

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "gradient"
NEEDS = "a curve whose slope is surer and a known time per prompt token"


def cost(view: View) -> float:
    """c of a usual prompt, seconds: the gradient cost."""
    return gradient.cost(view)


def per_token(view: View) -> float:
    """P [s per token]."""
    return view.prefill_s_per_token


def ready(view: View) -> bool:
    """Whether the slope is known well enough, and how fast prompts are read."""
    return gradient.ready(view) and view.prefill_s_per_token > 0.0
