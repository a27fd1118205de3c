"""Join an idle queue: a random idle server while there is one, else a random server.

Lu et al., Performance Evaluation 2011, where idle servers report to a dispatcher. A target of k servers with N < k
requests has k - N idle ones for sure, and is drawn by these: for one server that is an empty queue, for a cell it is
as near as a count of its requests can come.
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
    """Random among the idle; stateless."""

    COST: ClassVar[str | None] = ""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate and the rule: `idle`, or `none-idle` where it was drawn by weight."""
        idle = [max(0.0, 1.0 - candidate.load) * candidate.weight for candidate in candidates]
        index = drawn(idle, rng)
        if index >= 0:
            return index, "idle"
        return drawn(proportional([candidate.weight for candidate in candidates]), rng), "none-idle"
