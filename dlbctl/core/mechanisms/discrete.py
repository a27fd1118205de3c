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
from dlbctl.core.prices import price, prices
from dlbctl.core.tournament import LISTED, Tournament

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

_NEVER: Final = float("inf")

TIE_SHARE: Final = 0.01
# With fewer candidates, or more than this share of them changed, to look at all is quicker than to keep them in order.
FEW: Final = 32
MANY_CHANGED: Final = 0.125


class Mechanism(mechanism.Mechanism):
    """Least cost. It remembers the costs in an order, so that a choice takes no look at what has not changed."""

    def __init__(self) -> None:
        self._among: Sequence[View] = ()
        self._order: Tournament | None = None
        # Within what `per_token` lies of all in the order.
        self._least_per_token = 0.0
        self._most_per_token = 0.0

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
                self._least_per_token = min(self._least_per_token, candidate.per_token)
                self._most_per_token = max(self._most_per_token, candidate.per_token)

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a least-cost candidate and the rule: `least-cost` or `tie`."""
        if candidates is self._among and len(candidates) > FEW:
            index, only = self._in_order(candidates, request, rng)
            if index >= 0:
                return index, "least-cost" if only else "tie"
        index, only = any_least(prices(candidates, request), rng, TIE_SHARE)
        return index, "least-cost" if only else "tie"

    def _in_order(self, candidates: Sequence[View], request: Demand, rng: random.Random) -> tuple[int, bool]:
        """As a look at all would have it; -1 where only that can tell.

        What a prompt adds lies between two bounds, so who is far from the least cost of a usual one is not it.
        """
        order = self._order
        if order is None:
            order = self._order = Tournament([candidate.cost for candidate in candidates])
            per_token = [candidate.per_token for candidate in candidates]
            self._least_per_token, self._most_per_token = min(per_token), max(per_token)
        if not order.least < _NEVER:
            return -1, False
        if self._most_per_token == self._least_per_token == 0.0:
            return order.any_within(order.least * (1.0 + TIE_SHARE), rng)
        extra_tokens = request.extra_tokens
        reach = price(candidates[order.winner], request) * (1.0 + TIE_SHARE)
        limit = reach - min(self._least_per_token * extra_tokens, self._most_per_token * extra_tokens)
        if not (reach > 0.0 and limit < _NEVER):
            return -1, False
        places = order.within(limit)
        if len(places) > LISTED:
            return -1, False
        places.sort()
        index, only = any_least([price(candidates[place], request) for place in places], rng, TIE_SHARE)
        return places[index], only
