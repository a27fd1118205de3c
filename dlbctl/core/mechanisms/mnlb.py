"""Minimum network latency: shares worked out every 10 s from what all roots ask for, so that distance is least.

The balancer that DLB (section 1.1) compares with: capacity is a bound, latency in the cell no matter. The program is
in `core.programs`; every root solves it for all of them and goes by its own row. Until there is a solution, and for
cells that have come since, shares are as weights are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.programs import NetworkLatencyProgram
from dlbctl.core.shares import drawn, proportional

if TYPE_CHECKING:
    from dlbctl.core.policy import CellView, Demand, View
    from dlbctl.core.programs import Program, Solution

PERIOD_S: Final = 10.0
RETRY_S: Final = 1.0  # while too little is known for a program


class Mechanism(mechanism.Mechanism):
    """The shares of the last solution, by cell. Waits for at most one solution."""

    COST: ClassVar[str | None] = ""

    def __init__(self) -> None:
        self._planned: dict[str, float] = {}
        self._here = ""
        self._awaited: NetworkLatencyProgram | None = None
        self._next_s = 0.0

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate, drawn by share, and the rule `planned`; `drawn` before there is a plan."""
        return drawn(self.shares(candidates), rng), "planned" if self._planned else "drawn"

    def shares(self, candidates: Sequence[View]) -> list[float]:
        """As planned among those that the plan knows; in proportion to the weights between these and the others."""
        by_weight = proportional([candidate.weight for candidate in candidates])
        known = [candidate.name in self._planned for candidate in candidates]
        planned = sum((self._planned[c.name] for c, is_known in zip(candidates, known, strict=True) if is_known), 0.0)
        if planned <= 0.0:
            return by_weight
        room = sum((share for share, is_known in zip(by_weight, known, strict=True) if is_known), 0.0)
        return [
            room * self._planned[candidate.name] / planned if is_known else share
            for candidate, share, is_known in zip(candidates, by_weight, known, strict=True)
        ]

    def program(self, now_s: float, here: str, candidates: Sequence[CellView]) -> Program | None:
        """The program of all sources with arrivals, every 10 s; none before this root's own arrivals are known."""
        if now_s < self._next_s or len(candidates) < 2:
            return None
        program = network_latency(here, candidates)
        self._next_s = now_s + (PERIOD_S if program is not None else RETRY_S)
        if program is not None:
            self._here = here
            self._awaited = program
        return program

    def solved(self, solution: Solution) -> None:
        """Go by this root's row, if this is the solution waited for."""
        awaited = self._awaited
        if awaited is None or awaited.cells != solution.cells or awaited.sources != solution.sources:
            return
        self._awaited = None
        row = solution.shares[solution.sources.index(self._here)]
        self._planned = dict(zip(solution.cells, row, strict=True))


def network_latency(here: str, candidates: Sequence[CellView]) -> NetworkLatencyProgram | None:
    """The program as this root knows the world; None while it knows of no arrivals of its own.

    All roots should find the same plan, so everything stands in order of names. Of a source that has told no cell how
    far it is nothing can be planned; a cell that it has not told is one it does not send to.
    """
    cells = sorted(candidates, key=lambda cell: cell.name)
    rates: dict[str, float] = {}
    for cell in cells:
        for source, rate in cell.arrivals.items():
            if rate > 0.0:
                rates[source] = rates.get(source, 0.0) + rate
    if here not in rates:
        return None
    told = [cell.sources for cell in cells]
    tau_s = {
        source: tuple(cell.tau_s for cell in cells) if source == here else tuple(taus.get(source) for taus in told)
        for source in sorted(rates)
    }
    sources = tuple(source for source, row in tau_s.items() if any(tau is not None for tau in row))
    return NetworkLatencyProgram(
        cells=tuple(cell.name for cell in cells),
        capacities=tuple(capacities(cells)),
        sources=sources,
        rates=tuple(rates[source] for source in sources),
        tau_s=tuple(tau_s[source] for source in sources),
    )


def capacities(cells: Sequence[CellView]) -> list[float]:
    """Requests per second of each cell: k times what a server takes; one that is not known is taken for average.

    With none known a server takes one request per second: then only the ratios of the cells count, and load is spread
    as soon as it is more than that.
    """
    known = [cell.capacity_rps for cell in cells if cell.capacity_rps > 0.0]
    average_rps = sum(known) / len(known) if known else 1.0
    return [cell.weight * (cell.capacity_rps or average_rps) for cell in cells]
