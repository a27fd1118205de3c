"""What a router knows of the loop that its shares are part of: how slowly it swings, and how fast shares may move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dlbctl.core.stepsize import safe_stepsize

if TYPE_CHECKING:
    from dlbctl.core.curve import Curve
    from dlbctl.core.policy import CellView, Cost, View

NEVER: Final = float("inf")
# Loads this much apart tell how steep a cost is [requests per server, and as a part of the load].
APART: Final = 1e-3


class AtLoad:
    """A candidate as it would be at another load. Satisfies `policy.View`."""

    def __init__(self, view: View, load: float) -> None:
        self.name = view.name
        self.load = load
        self.tau_s = view.tau_s
        self.curve: Curve | None = view.curve
        self.tail: Curve | None = view.tail
        self.prefill_s_per_token = view.prefill_s_per_token
        self.work_s = view.work_s
        self.weight = view.weight
        self.in_flight = view.in_flight
        self.cost = view.cost
        self.per_token = view.per_token
        self.place = view.place

    def __repr__(self) -> str:
        return f"<AtLoad {self.name} {self.load:.3g}>"


def slowest_swing_s(candidates: Sequence[View]) -> float:
    """The longest period with which shares could swing by themselves: twice 4 (2 tau + 1/mu') of the slowest.

    Infinite while there is no curve of one of them: what comes and goes more slowly is the demand's doing.
    """
    slowest_s = 0.0
    for candidate in candidates:
        curve = candidate.curve
        if curve is None:
            return NEVER
        slowest_s = max(slowest_s, 2.0 * candidate.tau_s + curve.gradient_s(candidate.load))
    return 8.0 * slowest_s


def safe_rate(cost: Cost, here: str, candidates: Sequence[CellView], *, relative: bool) -> float:
    """eta_safe for these cells as they are, from what all roots ask of them; 0 while too little is known.

    relative: shares follow ratios of costs, so that what counts is how steep their logarithm is.
    """
    rates: dict[str, float] = {}
    for cell in candidates:
        if cell.curve is None or cell.weight <= 0.0 or not cost.ready(cell):
            return 0.0
        for source, rate in cell.arrivals.items():
            rates[source] = rates.get(source, 0.0) + rate
    if not rates:
        return 0.0
    loops = []
    for cell in candidates:
        curve = cell.curve
        if curve is None or not cell.arrivals:
            continue
        near = [
            (rate, 2.0 * tau_s)
            for source, rate in rates.items()
            if (tau_s := cell.tau_s if source == here else cell.sources.get(source, -1.0)) >= 0.0
        ]
        loops.append((_steepness(cost, cell, relative=relative), 1.0 / curve.gradient_s(cell.load), near))
    return safe_stepsize(loops)


def _steepness(cost: Cost, cell: CellView, *, relative: bool) -> float:
    """f' by requests in flight."""
    step = APART * (1.0 + cell.load)
    here, there = cost.of(AtLoad(cell, cell.load)), cost.of(AtLoad(cell, cell.load + step))
    steepness = (there - here) / (step * cell.weight)
    if not relative:
        return steepness
    return steepness / (max(here, 1.0) if cost.can_be_zero else here)
