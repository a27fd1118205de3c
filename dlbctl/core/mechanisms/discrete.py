"""Send each request to the least cost; near ties are broken at random.

DLB section 3.2.2. A strict argmin makes routers that see the same state herd on one target, so costs
within 1 % of the least count as equal.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dlbctl.core import mechanism
from dlbctl.core.least import any_least
from dlbctl.core.prices import prices
from dlbctl.core.tournament import Tournament

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

TIE_SHARE: Final = 0.01
# With fewer candidates, or more than this share of them changed, to look at all is quicker than to keep them in order.
FEW: Final = 32
MANY_CHANGED: Final = 0.125


class Mechanism(mechanism.Mechanism):
    """Least cost. It remembers the costs in an order, so that a choice takes no look at what has not changed."""

    def __init__(self) -> None:
        self._among: Sequence[View] = ()
        self._order: Tournament | None = None

    def among(self, candidates: Sequence[View]) -> None:
        """Begin anew: all costs are about to change."""
        self._among = candidates
        self._order = None

    def changed(self, candidates: Sequence[View]) -> None:
        """Keep the order, or give it up where to make it anew costs less."""
        order = self._order
        if order is None:
            return
        if len(candidates) > MANY_CHANGED * len(self._among):
            self._order = None
            return
        for candidate in candidates:
            if candidate.place >= 0:
                order.change(candidate.place, candidate.cost)

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a least-cost candidate and the rule: `least-cost` or `tie`."""
        if candidates is self._among and len(candidates) > FEW and candidates[0].per_token == 0.0:
            if self._order is None:
                self._order = Tournament([candidate.cost for candidate in candidates])
            limit = self._order.least * (1.0 + TIE_SHARE)
            if limit < float("inf"):
                index, only = self._order.any_within(limit, rng)
                return index, "least-cost" if only else "tie"
        index, only = any_least(prices(candidates, request), rng, TIE_SHARE)
        return index, "least-cost" if only else "tie"
