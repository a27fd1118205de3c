"""What every mechanism is: how an endpoint chooses among its candidates, and what it may learn to choose by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from dlbctl.core.policy import CellView, Cost, Demand, View
    from dlbctl.core.programs import Program, Solution
    from dlbctl.core.settings import EndpointSettings

# What may be wrong with how a mechanism works (`Mechanism.alarms`), in words.
OSCILLATION: Final = "oscillation"
ALARMS: Final[dict[str, str]] = {
    OSCILLATION: "its shares swing: a smaller flow.stepsize calms them; flow.automatic = true sees to that",
}

# As often as a root's view of its cells changes by default (`probe_interval_ms`).
ROUND_S: Final = 0.01


class Mechanism:
    """The base of each file's class `Mechanism`; an endpoint has one instance, for as long as it has the policy.

    COST: None where its policies name one (`discrete/latency`); otherwise they have the mechanism's name alone, and
    this is the cost that it always goes by, empty for one that looks at none. CORRECTED: whether the loads it sees
    count what is on its way to a cell and not yet in what that reported. ROUNDS: whether it is told every ROUND_S how
    things stand. OBSERVES: whether it is told how long each request took.

    Candidates come and go, so whatever is remembered of one goes by its name, which no two of an endpoint share.
    """

    COST: ClassVar[str | None] = None
    CORRECTED: ClassVar[bool] = True
    ROUNDS: ClassVar[bool] = False
    OBSERVES: ClassVar[bool] = False

    def configure(self, settings: EndpointSettings) -> None:
        """Take over the endpoint's settings: before anything else, and when they change."""

    def priced(self, cost: Cost) -> None:
        """Costs are told by this one from now on: the policy's, or one that it falls back to."""

    def choose(self, now_s: float, candidates: Sequence[View], request: Demand, rng: random.Random) -> tuple[int, str]:
        """Index of the chosen candidate (at least two are given) and the rule that decided.

        They may be fewer than a round is told of: those with room, or that the request has not tried.
        """
        raise NotImplementedError

    def among(self, candidates: Sequence[View]) -> None:
        """These are all that are routable, from now on; their costs are not known yet."""

    def changed(self, candidates: Sequence[View]) -> None:
        """The costs of these are others than before; told before a choice. `place` says where they stand in `among`."""

    def observed(self, now_s: float, candidate: View, latency_s: float) -> None:
        """A request sent there by this router has ended well, so long after it came."""

    def wants_rounds(self) -> bool:
        """Whether rounds are of use at present, to one that has them. A process without any is woken far less often."""
        return self.ROUNDS

    def round(self, now_s: float, candidates: Sequence[View]) -> None:
        """Learn from all candidates that are routable (perhaps none) and their costs as they are now.

        The same sequence again, and in `choose`, means the same candidates in it.
        Rounds come on a steady beat that a busy process misses now and then: what depends on time counts it itself.
        """

    def program(self, now_s: float, here: str, candidates: Sequence[CellView]) -> Program | None:
        """What it wants solved now, if anything; asked with every timer's event, once a second at least.

        here: the cell this router stands in. candidates: all that are routable.
        """
        del now_s, here, candidates
        return None

    def solved(self, solution: Solution) -> None:
        """Go by the solution of a program, if it still waits for it. Its cells are all candidates."""

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """The share of requests that each of the routable candidates is to get; empty where none is set."""
        del candidates
        return []

    def stepsize(self, candidates: Sequence[View]) -> float | None:
        """How fast shares follow costs [1/s^2 for costs in seconds]; None where they do not."""
        del candidates
        return None

    def alarms(self) -> tuple[str, ...]:
        """Which of ALARMS are on."""
        return ()

    def standing(self, candidates: Sequence[View]) -> str:
        """Which of several ways it goes at present, and why; empty for one that has only one."""
        del candidates
        return ""
