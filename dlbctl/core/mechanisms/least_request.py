"""Of two targets drawn by weight, the one where fewer of this router's own requests are active: Envoy's least request.

Envoy's `LEAST_REQUEST` with its default of two choices. It draws evenly and compares active requests while weights are
equal, as this does then. Unequal ones it serves in turns by weight / (active + 1), by a schedule that looks at all
hosts; here the two are drawn by weight, and the greater such quotient wins. What other routers have there it does not
see: that is `p2c`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dlbctl.core import mechanism
from dlbctl.core.shares import drawn, proportional

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View


class Mechanism(mechanism.Mechanism):
    """The better of two by own requests; stateless."""

    COST: ClassVar[str | None] = ""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of the chosen candidate and the rule: `fewer-of-2`, `tie`, or `only-weight` where no other has any."""
        shares = proportional([candidate.weight for candidate in candidates])
        first = drawn(shares, rng)
        one = (candidates[first].in_flight + 1) / shares[first]
        shares[first] = 0.0
        second = drawn(shares, rng)
        if second < 0:
            return first, "only-weight"
        other = (candidates[second].in_flight + 1) / shares[second]
        if one == other:
            return first, "tie"
        return (first if one < other else second), "fewer-of-2"
