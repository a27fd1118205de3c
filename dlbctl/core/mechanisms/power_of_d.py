"""Draw d candidates at random and take the cheaper: most of the balance at a fraction of the herding.

DLB section 3.1 (the leaf's rule), d = 2. Equal costs go to the lower load, then to chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dlbctl.core import mechanism
from dlbctl.core.prices import price
from dlbctl.core.shares import pair

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

_NEVER: Final = float("inf")


class Mechanism(mechanism.Mechanism):
    """The better of two; stateless."""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of the chosen candidate and the rule: `cheaper-of-2`, `lower-load` or `tie`."""
        first, second = pair(len(candidates), rng)
        one, other = candidates[first], candidates[second]
        # A cost that is no number counts as infinite.
        cost, other_cost = min(_NEVER, price(one, request)), min(_NEVER, price(other, request))
        if cost != other_cost:
            return (first if cost < other_cost else second), "cheaper-of-2"
        if one.load != other.load:
            return (first if one.load < other.load else second), "lower-load"
        return first, "tie"
