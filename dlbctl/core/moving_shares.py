"""What mechanisms that move shares have in common: shares by name as candidates come and go, rounds, and drawing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.loops import safe_rate, slowest_swing_s
from dlbctl.core.mechanism import OSCILLATION
from dlbctl.core.policy import NO_COST
from dlbctl.core.shares import EvenPoints, Urn, drawn, proportional
from dlbctl.core.swings import Swings, Throttle

if TYPE_CHECKING:
    from dlbctl.core.policy import CellView, Cost, Demand, View
    from dlbctl.core.programs import Program
    from dlbctl.core.settings import EndpointSettings

NEVER: Final = float("inf")

# Within one place the latency is next to nothing, and no step may be boundless.
TAU_FLOOR_S: Final = 0.001
# A process that slept has costs of now, which say nothing of all the time that it slept.
LONGEST_S: Final = 1.0
# How often it is worked out how fast shares may move and how slowly they may swing.
TENDED_S: Final = 1.0


class MovingShares(mechanism.Mechanism):
    """Shares of this router's requests that each round moves, by the names of the candidates that have them.

    Two of them for each: what was learned so far, and what is used, which may differ by what a subclass makes of the
    costs of the moment (`moved`). Shares that swing raise an alarm, and have the stepsize halved where that is wanted.
    KAPPA: the stepsize is this over the mean one-way latency. RELATIVE: ratios of costs move them, not differences.
    SPLIT, AUTOMATIC: how requests are drawn, and whether the stepsize is halved, where the endpoint does not say.
    """

    ROUNDS: ClassVar[bool] = True
    KAPPA: ClassVar[float] = 0.01
    RELATIVE: ClassVar[bool] = False
    SPLIT: ClassVar[str] = "random"
    AUTOMATIC: ClassVar[bool] = False

    def __init__(self) -> None:
        self._among: Sequence[View] = ()
        self._names: list[str] = []
        self._learned: list[float] = []
        self._used: list[float] = []
        self._urn = Urn([])
        self._points = EvenPoints()
        self._in_turn = False
        self._stepsize = 0.0
        self._is_safe = False  # the rule for the stepsize is the safe one
        self._safe = 0.0  # as worked out last; 0 while that cannot be
        self._automatic = False
        self._cost = NO_COST
        self._swings = Swings()
        self._slowest_s = NEVER
        self._throttle = Throttle()
        self._tended_s = -NEVER
        self._round_s = NEVER  # so that the first round makes no step

    def moved(self, shares: list[float], costs: list[float], length: float) -> tuple[list[float], list[float]]:
        """What is learned and what is used after a step of so much length (stepsize times seconds, perhaps 0)."""
        raise NotImplementedError

    def configure(self, settings: EndpointSettings) -> None:
        """Take over the stepsize, if the endpoint has one of its own, or its rule, and how requests are drawn."""
        flow = settings.flow
        self._stepsize = flow.stepsize
        self._is_safe = flow.rule == "safe"
        self._automatic = self.AUTOMATIC if flow.automatic is None else flow.automatic
        self._in_turn = (flow.split or self.SPLIT) == "deficit"
        if not self._automatic:
            self._throttle = Throttle()

    def priced(self, cost: Cost) -> None:
        """Take over what costs are told by."""
        self._cost = cost

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
            if self._swings.look(now_s, self._learned, self._slowest_s) and self._automatic:
                self._throttle.follow(now_s, self._swings)

    def program(self, now_s: float, here: str, candidates: Sequence[CellView]) -> Program | None:
        """Nothing to solve; time to look how fast shares may move and how slowly they may swing."""
        if now_s >= self._tended_s + TENDED_S:
            self._tended_s = now_s
            self._slowest_s = slowest_swing_s(candidates)
            self._safe = safe_rate(self._cost, here, candidates, relative=self.RELATIVE) if self._is_safe else 0.0
        return None

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """x over these candidates."""
        return self._used if candidates is self._among else carried(self._names, self._used, candidates)

    def stepsize(self, candidates: Sequence[View]) -> float:
        """The endpoint's own, or by its rule, as far as it is not halved at present."""
        return self._throttle.factor * (self._stepsize or self._by_rule(candidates))

    def alarms(self) -> tuple[str, ...]:
        """Whether shares swing."""
        return (OSCILLATION,) if self._swings.swinging else ()

    def _by_rule(self, candidates: Sequence[View]) -> float:
        """The safe one where it is wanted and known, else by the mean one-way latency to these candidates."""
        if not candidates:
            return 0.0
        by_latency = self.KAPPA / max(mean_tau_s(candidates), TAU_FLOOR_S)
        return min(self._safe, by_latency) if self._safe > 0.0 else by_latency

    def _carry(self, candidates: Sequence[View]) -> None:
        self._learned = carried(self._names, self._learned, candidates)
        self._used = carried(self._names, self._used, candidates)
        names = [candidate.name for candidate in candidates]
        if names != self._names:
            self._swings.restart()
        self._names = names
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
