"""Send each request to the least cost, on the state as it was reported: the paper's own discrete routing.

DLB section 3.2.2, for experiments. `discrete` corrects what it sees for what is on its way there and takes near
ties for equal; without either, routers that see the same state send the requests of a round trip to one target.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dlbctl.core import mechanism
from dlbctl.core.least import any_least
from dlbctl.core.prices import prices

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View


class Mechanism(mechanism.Mechanism):
    """Strictly the least cost; stateless."""

    CORRECTED: ClassVar[bool] = False

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a least-cost candidate and the rule: `least-cost`, or `tie` between equal ones."""
        index, only = any_least(prices(candidates, request), rng)
        return index, "least-cost" if only else "tie"
