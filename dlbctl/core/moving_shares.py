"""What mechanisms that move shares have in common: shares by name as candidates come and go, rounds, and drawing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.shares import EvenPoints, Urn, drawn, proportional

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View
    from dlbctl.core.settings import EndpointSettings

NEVER: Final = float("inf")

# Within one place the latency is next to nothing, and no step may be boundless.
TAU_FLOOR_S: Final = 0.001
# A process that slept has costs of now, which say nothing of all the time that it slept.
LONGEST_S: Final = 1.0


class MovingShares(mechanism.Mechanism):
    """Shares of this router's requests that each round moves, by the names of the candidates that have them.

    Two of them for each: what was learned so far, and what is used, which may differ by what a subclass makes of the
    costs of the moment (`moved`). KAPPA: the stepsize is this over the mean one-way latency. SPLIT: how requests are
    drawn where the endpoint does not say.
    """

    ROUNDS: ClassVar[bool] = True
    KAPPA: ClassVar[float] = 0.01
    SPLIT: ClassVar[str] = "random"

    def __init__(self) -> None:
        self._among: Sequence[View] = ()
        self._names: list[str] = []
        self._learned: list[float] = []
        self._used: list[float] = []
        self._urn = Urn([])
        self._points = EvenPoints()
        self._in_turn = False
        self._stepsize = 0.0
        self._round_s = NEVER  # so that the first round makes no step

    def moved(self, shares: list[float], costs: list[float], length: float) -> tuple[list[float], list[float]]:
        """What is learned and what is used after a step of so much length (stepsize times seconds, perhaps 0)."""
        raise NotImplementedError

    def configure(self, settings: EndpointSettings) -> None:
        """Take over the stepsize, if the endpoint has one of its own, and how requests are drawn."""
        self._stepsize = settings.flow.stepsize
        self._in_turn = (settings.flow.split or self.SPLIT) == "deficit"

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate by share, and the rule: `drawn`, `in-turn`, or `by-weight` where none has a share."""
        urn = self._urn
        if candidates is not self._among:
            known = dict(zip(self._names, self._used, strict=True))
            urn = Urn([known.get(candidate.name, 0.0) for candidate in candidates])
        index = urn.draw(self._points.next(rng) if self._in_turn else rng.random())
        if index >= 0:
            return index, "in-turn" if self._in_turn else "drawn"
        return drawn(proportional([candidate.weight for candidate in candidates]), rng), "by-weight"

    def among(self, candidates: Sequence[View]) -> None:
        """Carry the shares over at once. Before the first round there are none but those by weight."""
        if self._round_s != NEVER:
            self._carry(candidates)

    def round(self, now_s: float, candidates: Sequence[View]) -> None:
        """Make a step of the length that the time since the last one asks for."""
        if candidates is not self._among:
            self._carry(candidates)
        length = self.stepsize(candidates) * min(max(now_s - self._round_s, 0.0), LONGEST_S)
        self._round_s = now_s
        if self._learned:
            costs = [candidate.cost for candidate in candidates]
            self._learned, self._used = self.moved(self._learned, costs, length)
            self._urn = Urn(self._used)

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """x over these candidates."""
        return self._used if candidates is self._among else carried(self._names, self._used, candidates)

    def stepsize(self, candidates: Sequence[View]) -> float:
        """The endpoint's own, or by the mean one-way latency to these candidates."""
        if self._stepsize or not candidates:
            return self._stepsize
        return self.KAPPA / max(mean_tau_s(candidates), TAU_FLOOR_S)

    def _carry(self, candidates: Sequence[View]) -> None:
        self._learned = carried(self._names, self._learned, candidates)
        self._used = carried(self._names, self._used, candidates)
        self._names = [candidate.name for candidate in candidates]
        self._among = candidates
        self._urn = Urn(self._used)


def mean_tau_s(candidates: Sequence[View]) -> float:
    """Mean one-way latency to candidates, of which there is one at least."""
    total_s = 0.0
    for candidate in candidates:
        total_s += candidate.tau_s
    return total_s / len(candidates)


def carried(names: list[str], shares: list[float], candidates: Sequence[View]) -> list[float]:
    """Shares by name over these candidates: a new one enters with its share of the servers, others share the rest.

    Those that are gone have so given theirs back.
    """
    by_weight = proportional([candidate.weight for candidate in candidates])
    before = dict(zip(names, shares, strict=True))
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
