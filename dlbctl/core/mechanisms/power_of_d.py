"""Draw d candidates at random and take the cheaper: most of the balance at a fraction of the herding.

DLB section 3.1 (the leaf's rule), d = 2. Equal costs go to the lower load, then to chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlbctl.core import mechanism
from dlbctl.core.prices import price

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View


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
        count = len(candidates)
        # Two different ones, in random order: the first wins a tie, which is then a fair coin.
        first = int(rng.random() * count)
        second = int(rng.random() * (count - 1))
        if second >= first:
            second += 1
        one, other = candidates[first], candidates[second]
        cost, other_cost = price(one, request), price(other, request)
        if cost != other_cost:
            return (first if cost < other_cost else second), "cheaper-of-2"
        if one.load != other.load:
            return (first if one.load < other.load else second), "lower-load"
        return first, "tie"
