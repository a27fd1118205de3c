"""Of two random targets and the best of the last time, the one with the fewest requests per server.

DRILL(d, m), Ghorbani et al., SIGCOMM 2017: d random queues and the m best that are remembered. d = 2 and m = 1, past
which the paper finds that more choices synchronise those who choose. What is remembered is looked at anew: only who it
was is kept. Switches' queues are alike; here loads are per server, and a new look wins a tie.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dlbctl.core import mechanism
from dlbctl.core.shares import pair

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View


class Mechanism(mechanism.Mechanism):
    """The best of two and one; it remembers the name of its last choice."""

    COST: ClassVar[str | None] = ""

    def __init__(self) -> None:
        self._best = ""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of the chosen candidate and the rule: `best-of-2` or `remembered`."""
        best, second = pair(len(candidates), rng)
        if candidates[second].load < candidates[best].load:
            best = second
        rule = "best-of-2"
        for index, candidate in enumerate(candidates):
            if candidate.name == self._best:
                if candidate.load < candidates[best].load:
                    best, rule = index, "remembered"
                break
        self._best = candidates[best].name
        return best, rule
