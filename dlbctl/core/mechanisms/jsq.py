"""Join the shortest queue: the fewest requests in flight, however many servers there are for them.

Winston 1977 and Weber 1978 for servers that are alike (DLB section 2 names their line); with cells of unequal size the
small ones overflow, which `wlc` mends. Equals go to chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.least import any_least

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

# Whole numbers that have been divided by a weight and multiplied by it again.
_ROUNDING: Final = 1e-9


class Mechanism(mechanism.Mechanism):
    """Least N; stateless."""

    COST: ClassVar[str | None] = ""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate with the fewest requests and the rule: `shortest-queue` or `tie`."""
        queues = [candidate.load * candidate.weight for candidate in candidates]
        index, only = any_least(queues, rng, _ROUNDING)
        return index, "shortest-queue" if only else "tie"
