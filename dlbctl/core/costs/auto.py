"""The best that can be told of every cell: requests in flight, then latency, then the marginal effect.

DLB's onboarding of a new endpoint as one cost. Without curves it is `rif`; with them `gated`, which goes from latency
to gradient in each cell as its slope becomes sure; and once every cell has told how fast it reads prompts, a request's
own prompt counts as in `unified`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.core.costs import gated, unified

if TYPE_CHECKING:
    from dlbctl.core.policy import View

UNIT = "s"
FALLBACK = "gated"
NEEDS = "a known time per prompt token"


def cost(view: View) -> float:
    """c of a usual prompt, seconds: as `gated` has it."""
    return gated.cost(view)


def per_token(view: View) -> float:
    """As `unified` has it [s per token]."""
    return unified.per_token(view)


def ready(view: View) -> bool:
    """Whether there is a curve, and how fast prompts are read."""
    return gated.ready(view) and view.prefill_s_per_token > 0.0
