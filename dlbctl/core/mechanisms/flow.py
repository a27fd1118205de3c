"""Draw the target from shares that move, each round, some way from dear targets to cheap ones.

DLB section 3.2.2: x <- Proj(x - eta dt c), gradient descent on the shares x of this router's requests, projected onto
the simplex. It starts in proportion to the servers. The paper has eta inversely proportional to the mean network
latency, and sees the state as it was reported: its convergence is proved for states that are late, and for steps that
are small enough.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.projection import onto_simplex
from dlbctl.core.shares import drawn, proportional

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View
    from dlbctl.core.settings import EndpointSettings

NEVER: Final = float("inf")

# eta = KAPPA / tau [1/s^2 for costs in seconds]. The paper gives no constant. This one settles at 80 % utilisation
# where an unloaded request takes some .8 s; near saturation, where 1/mu' explodes, it swings.
KAPPA_PER_S: Final = 0.01
# Within one place the latency is next to nothing, and no step may be boundless.
TAU_FLOOR_S: Final = 0.001
# A process that slept has costs of now, which say nothing of all the time that it slept.
LONGEST_S: Final = 1.0


class Mechanism(mechanism.Mechanism):
    """Projected gradient descent; it keeps the shares of the candidates of the last round, and their names."""

    CORRECTED: ClassVar[bool] = False
    ROUNDS: ClassVar[bool] = True

    def __init__(self) -> None:
        self._among: Sequence[View] = ()
        self._names: list[str] = []
        self._shares: list[float] = []
        self._stepsize = 0.0
        self._round_s = NEVER  # so that the first round makes no step

    def configure(self, settings: EndpointSettings) -> None:
        """Take over eta, if the endpoint has one of its own."""
        self._stepsize = settings.flow.stepsize

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate, drawn by share, and the rule: `drawn`, or `by-weight` where none has a share."""
        shares = self._shares
        if candidates is not self._among:
            known = dict(zip(self._names, shares, strict=True))
            shares = [known.get(candidate.name, 0.0) for candidate in candidates]
        index = drawn(shares, rng)
        if index >= 0:
            return index, "drawn"
        return drawn(proportional([candidate.weight for candidate in candidates]), rng), "by-weight"

    def round(self, now_s: float, candidates: Sequence[View]) -> None:
        """Make a step of the length that the time since the last one asks for."""
        if candidates is not self._among:
            self._shares = self.shares(candidates)
            self._names = [candidate.name for candidate in candidates]
            self._among = candidates
        length = self.stepsize(candidates) * min(now_s - self._round_s, LONGEST_S)
        self._round_s = now_s
        if self._shares and length > 0.0:
            self._shares = _stepped(self._shares, candidates, length)

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """x over these candidates: a new one enters with its share of the servers, others share the rest as they did.

        Those that are gone have so given theirs back.
        """
        by_weight = proportional([candidate.weight for candidate in candidates])
        before = dict(zip(self._names, self._shares, strict=True))
        known = [before.get(candidate.name, -1.0) for candidate in candidates]
        kept = 0.0
        theirs = 0.0  # the servers' share of those that are known
        for share, due in zip(known, by_weight, strict=True):
            if share >= 0.0:
                kept += share
                theirs += due
        if kept <= 0.0:
            return by_weight
        return [share * theirs / kept if share >= 0.0 else due for share, due in zip(known, by_weight, strict=True)]

    def stepsize(self, candidates: Sequence[View]) -> float:
        """eta [1/s^2 for costs in seconds]: the endpoint's own, or by the mean one-way latency to these candidates."""
        if self._stepsize or not candidates:
            return self._stepsize
        total_s = 0.0
        for candidate in candidates:
            total_s += candidate.tau_s
        return KAPPA_PER_S / max(total_s / len(candidates), TAU_FLOOR_S)


def _stepped(shares: list[float], candidates: Sequence[View], length: float) -> list[float]:
    """Proj(x - length c). A cost that is no number counts as infinite; if all are, nothing moves.

    Costs count from the least: that moves all coordinates alike, which a projection onto the simplex does not see.
    """
    costs = [candidate.cost for candidate in candidates]
    costs = [cost if -NEVER < cost < NEVER else NEVER for cost in costs]
    least = min(costs)
    if least == NEVER:
        return shares
    return onto_simplex([share - length * (cost - least) for share, cost in zip(shares, costs, strict=True)])
