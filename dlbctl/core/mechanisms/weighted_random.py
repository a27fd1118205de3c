"""Draw the target at random, each as likely as its share of the servers, whatever the loads.

DLB section 5.4 (`Rand`), the baseline the paper's figures are relative to: x_j ~ k_j, the live k.
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
    """Random by weight; stateless."""

    COST: ClassVar[str | None] = ""

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate, drawn by weight, and the rule `drawn`."""
        index = drawn([candidate.weight for candidate in candidates], rng)
        return (index if index >= 0 else int(rng.random() * len(candidates))), "drawn"

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """In proportion to the weights."""
        return proportional([candidate.weight for candidate in candidates])
