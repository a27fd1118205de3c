"""Send each request to the least cost; near ties are broken at random.

DLB section 3.2.2. A strict argmin makes routers that see the same state herd on one target, so costs
within 1 % of the least count as equal.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlbctl.core import mechanism

if TYPE_CHECKING:
    from dlbctl.core.policy import View

TIE_SHARE = 0.01


class Mechanism(mechanism.Mechanism):
    """Least cost; stateless."""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a least-cost candidate and the rule: `least-cost` or `tie`."""
        costs = [candidate.cost for candidate in candidates]
        least = min(costs)
        limit = least * (1.0 + TIE_SHARE)
        ties = [index for index, cost in enumerate(costs) if cost <= limit]
        if len(ties) == 1:
            return ties[0], "least-cost"
        return ties[int(rng.random() * len(ties))], "tie"
