"""Compare costs at each request where requests take long, move shares where they are soon over: whichever suits.

Ours. What a router sees of a cell is as old as the way is long. Where a request takes many times as long as that, loads
hardly change meanwhile, and `discrete` (corrected for what is on its way) places each request best. Where requests are
over before anybody hears of them, comparing only herds, and `flow-pi` settles on shares instead; and with less than
about a request a second nobody would notice shares. So R = l0 / (2 tau), the time in an idle server over the mean round
trip, decides, and the rate of requests. Shares are kept up to date from well before they may be wanted, so that a
change is one of who is asked; far from it, and while nothing comes, there are no rounds that would wake the process.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.decay import DecayedCount
from dlbctl.core.mechanisms import discrete, flow_pi
from dlbctl.core.moving_shares import TAU_FLOOR_S, mean_tau_s

if TYPE_CHECKING:
    from dlbctl.core.policy import CellView, Cost, Demand, View
    from dlbctl.core.programs import Program
    from dlbctl.core.settings import EndpointSettings

# Times the round trip that a request takes in an idle server: from here on it is for shares, and from there for costs.
SHARES_BELOW: Final = 1.0
COSTS_ABOVE: Final = 2.0
# From here on shares are not even kept up to date.
SHARES_OUT_OF_SIGHT: Final = 4.0
# Requests per second through this router, likewise.
SHARES_ABOVE_RPS: Final = 2.0
COSTS_BELOW_RPS: Final = 1.0
RATE_HALF_LIFE_S: Final = 30.0
DECIDED_S: Final = 1.0


class Mechanism(mechanism.Mechanism):
    """`discrete` or `flow-pi`, decided once a second."""

    ROUNDS: ClassVar[bool] = True

    def __init__(self) -> None:
        self._discrete = discrete.Mechanism()
        self._flow_pi = flow_pi.Mechanism()
        self._among: Sequence[View] = ()
        self._moves_shares = False
        self._keeps_shares = False
        self._requests = DecayedCount(RATE_HALF_LIFE_S)
        self._rate_rps = 0.0
        self._decided_s = float("-inf")

    def configure(self, settings: EndpointSettings) -> None:
        """For whichever of them has settings."""
        self._flow_pi.configure(settings)

    def priced(self, cost: Cost) -> None:
        """For whichever wants to know."""
        self._flow_pi.priced(cost)

    def choose(self, now_s: float, candidates: Sequence[View], request: Demand, rng: random.Random) -> tuple[int, str]:
        """As the one of them that is in use has it."""
        self._requests.add(now_s)
        self._decide(now_s)
        if self._moves_shares:
            return self._flow_pi.choose(now_s, candidates, request, rng)
        return self._discrete.choose(now_s, candidates, request, rng)

    def among(self, candidates: Sequence[View]) -> None:
        """For both."""
        self._among = candidates
        self._discrete.among(candidates)
        self._flow_pi.among(candidates)

    def changed(self, candidates: Sequence[View]) -> None:
        """For the one that keeps costs in order."""
        self._discrete.changed(candidates)

    def round(self, now_s: float, candidates: Sequence[View]) -> None:
        """For the one that learns, and for the decision, should no request come."""
        self._flow_pi.round(now_s, candidates)
        self._decide(now_s)

    def wants_rounds(self) -> bool:
        """While shares are in use, or may soon be."""
        return self._keeps_shares

    def program(self, now_s: float, here: str, candidates: Sequence[CellView]) -> Program | None:
        """As the one that looks at the whole loop has it."""
        return self._flow_pi.program(now_s, here, candidates)

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """Those that are used; none while costs are compared."""
        return self._flow_pi.shares(candidates) if self._moves_shares else []

    def stepsize(self, candidates: Sequence[View]) -> float | None:
        """Of the shares that are used."""
        return self._flow_pi.stepsize(candidates) if self._moves_shares else None

    def alarms(self) -> tuple[str, ...]:
        """Those of the shares that are used."""
        return self._flow_pi.alarms() if self._moves_shares else ()

    def standing(self, candidates: Sequence[View]) -> str:
        """Which is in use and why."""
        times = round_trips(candidates)
        if self._moves_shares:
            return f"flow-pi: a request takes {_times(times)} the round trip"
        if times < COSTS_ABOVE:
            return f"discrete: {self._rate_rps:.2g} requests/s through this router are too few for shares"
        if times == float("inf"):
            return "discrete: how long a request takes is not known yet"
        return f"discrete: a request takes {_times(times)} the round trip"

    def _decide(self, now_s: float) -> None:
        """Once a second. Change only from clear to clear: between the limits it stays as it is."""
        if now_s < self._decided_s + DECIDED_S:
            return
        self._decided_s = now_s
        self._rate_rps = self._requests.rate(now_s)
        times = round_trips(self._among)
        self._keeps_shares = times < SHARES_OUT_OF_SIGHT and self._rate_rps > COSTS_BELOW_RPS / 2.0
        if self._moves_shares:
            self._moves_shares = times <= COSTS_ABOVE and self._rate_rps >= COSTS_BELOW_RPS
        else:
            self._moves_shares = times < SHARES_BELOW and self._rate_rps > SHARES_ABOVE_RPS


def _times(times: float) -> str:
    return f"{times:.0f} x" if times >= 10.0 else f"{times:.2g} x"


def round_trips(candidates: Sequence[View]) -> float:
    """R: how many mean round trips a request takes in an idle server; infinite where no curve tells.

    Of the servers that have a curve, each as much as it weighs.
    """
    weight, idle_s = 0.0, 0.0
    for candidate in candidates:
        curve = candidate.curve
        if curve is not None:
            weight += candidate.weight
            idle_s += candidate.weight * curve.a
    if weight <= 0.0:
        return float("inf")
    return idle_s / weight / (2.0 * max(mean_tau_s(candidates), TAU_FLOOR_S))
