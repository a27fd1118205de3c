"""In turns, each target as often as it has servers, and not in a row: nginx' smooth weighted round robin.

nginx' upstream module: each time every target gains its weight, the one that has most is chosen, and pays what all have
gained. Of weights 5, 1 and 1 that makes a a b a c a a. Chance has no part in it; targets that are new stand where they
would after a whole round.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dlbctl.core import mechanism
from dlbctl.core.shares import proportional

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View


class Mechanism(mechanism.Mechanism):
    """Smooth weighted turns; it keeps, by name, how many requests each is owed."""

    COST: ClassVar[str | None] = ""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}

    def among(self, candidates: Sequence[View]) -> None:
        """Forget those that are gone."""
        self._owed = {candidate.name: self._owed.get(candidate.name, 0.0) for candidate in candidates}

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,  # noqa: ARG002
    ) -> tuple[int, str]:
        """Index of the candidate whose turn it is, and the rule `in-turn`."""
        owed = self._owed
        chosen = -1
        most = 0.0
        for index, gain in enumerate(self.shares(candidates)):
            name = candidates[index].name
            now_owed = owed.get(name, 0.0) + gain
            owed[name] = now_owed
            if gain > 0.0 and (chosen < 0 or now_owed > most):
                chosen, most = index, now_owed
        owed[candidates[chosen].name] = most - 1.0
        return chosen, "in-turn"

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """In proportion to the weights."""
        return proportional([candidate.weight for candidate in candidates])
