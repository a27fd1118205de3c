"""What if: changes to a fleet, from the beginning or from a second of the run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from dlbctl.core.errors import UsageError
from dlbctl.core.names import counted
from dlbctl.sim.plan import BatchingPlan, CellPlan, RatePlan, ServerPlan, WorldPlan
from dlbctl.sim.whatif.fleet import CellSize, Delays, Fleet, Told, engines, require
from dlbctl.sim.world import World


class Change(Protocol):
    """Something that is otherwise. at_s: from when on; None: from the beginning."""

    @property
    def cell(self) -> str:
        """Where."""

    @property
    def at_s(self) -> float | None:
        """When."""

    def __str__(self) -> str:
        """As a table names it."""

    def check(self, plan: WorldPlan) -> None:
        """UsageError where the fleet does not have what it is about."""

    def planned(self, plan: WorldPlan) -> WorldPlan:
        """The fleet with it."""

    def happen(self, world: World) -> None:
        """Have it happen now."""


@dataclass(frozen=True, slots=True)
class Lose:
    """A cell is gone."""

    cell: str
    at_s: float | None = None

    def __str__(self) -> str:
        return f"{self.cell} lost{_when(self.at_s)}"

    def check(self, plan: WorldPlan) -> None:
        """It is there, and not the only one."""
        require(self.cell, _names(plan), "--lose", "cell")

    def planned(self, plan: WorldPlan) -> WorldPlan:
        """Without it."""
        return replace(plan, cells=tuple(cell for cell in plan.cells if cell.name != self.cell))

    def happen(self, world: World) -> None:
        """Have it go down."""
        world.lose(_names(world.plan).index(self.cell))


@dataclass(frozen=True, slots=True)
class Slow:
    """A cell's servers take so many times as long."""

    cell: str
    factor: float
    at_s: float | None = None

    def __str__(self) -> str:
        return f"{self.cell} {self.factor:g} times slower{_when(self.at_s)}"

    def check(self, plan: WorldPlan) -> None:
        """It is there."""
        require(self.cell, _names(plan), "--slow", "cell")

    def planned(self, plan: WorldPlan) -> WorldPlan:
        """With slow servers."""
        return _with(plan, self.cell, lambda cell: _slowed(cell, self.factor))

    def happen(self, world: World) -> None:
        """Have them be slow for what begins from now on."""
        world.slow_down(_names(world.plan).index(self.cell), self.factor)


@dataclass(frozen=True, slots=True)
class Servers:
    """A cell has another number of servers; further ones are like its first."""

    cell: str
    count: int
    at_s: float | None = None

    def __str__(self) -> str:
        return f"{self.cell} with {counted(self.count, 'server')}{_when(self.at_s)}"

    def check(self, plan: WorldPlan) -> None:
        """It is there, and as many servers can be told apart in it."""
        require(self.cell, _names(plan), "--servers", "cell")
        if self.at_s is not None and any(isinstance(server, RatePlan) for server in self._cell(plan).servers):
            raise UsageError(
                f"--servers {self.cell}: a cell that is known by its curve cannot change during the run",
                hint="leave out @TIME, or say with --profile what its servers are",
            )

    def planned(self, plan: WorldPlan) -> WorldPlan:
        """With so many."""
        return _with(plan, self.cell, lambda cell: replace(cell, servers=_sized(cell.servers, self.count)))

    def happen(self, world: World) -> None:
        """Have them come or go."""
        world.resize(_names(world.plan).index(self.cell), _sized(self._cell(world.plan).servers, self.count))

    def _cell(self, plan: WorldPlan) -> CellPlan:
        return next(cell for cell in plan.cells if cell.name == self.cell)


@dataclass(frozen=True, slots=True)
class Add:
    """A further cell, as far away as its name or the user says."""

    cell: str
    size: CellSize
    told: Told

    @property
    def at_s(self) -> None:
        """From the beginning on."""

    def __str__(self) -> str:
        return f"{self.cell} added with {counted(self.size.servers, 'server')}"

    def check(self, plan: WorldPlan) -> None:
        """It is new, and one knows what its servers are."""
        if self.cell in _names(plan):
            raise UsageError(
                f"--add {self.cell}: there is such a cell already",
                hint=f"--servers {self.cell}=N changes how many servers it has",
            )
        if not self.size.profile and not isinstance(plan.cells[0].servers[0], BatchingPlan):
            raise UsageError(f"--add {self.cell}={self.size.servers}: what are its servers?", hint="add :PROFILE")

    def planned(self, plan: WorldPlan) -> WorldPlan:
        """With it."""
        like = plan.cells[0]
        size, told = self.size, self.told
        servers = engines(size, told) if size.profile else _sized(like.servers, size.servers)
        cell = replace(like, name=self.cell, servers=servers, curve=None)
        return replace(plan, cells=(*plan.cells, cell), one_way_s={**plan.one_way_s, **self._delays(plan).one_way_s})

    def assumed(self, plan: WorldPlan) -> list[str]:
        """What it took for granted."""
        like = [] if self.size.profile else [f"servers of {self.cell} are like those of {plan.cells[0].name}"]
        return [*like, *self._delays(plan).assumed]

    def happen(self, world: World) -> None:  # noqa: ARG002 - as all of them
        """It never comes later."""
        raise AssertionError("a cell is added from the beginning")

    def _delays(self, plan: WorldPlan) -> Delays:
        return Delays(self.told, plan.sources, [self.cell])


@dataclass(frozen=True, slots=True)
class WhatIf:
    """All that is otherwise, together. demand: so many times as many requests a second."""

    changes: Sequence[Change] = ()
    demand: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.changes) or self.demand != 1.0

    def __str__(self) -> str:
        demand = [f"demand x {self.demand:g}"] if self.demand != 1.0 else []
        return ", ".join([*map(str, self.changes), *demand])

    @property
    def later(self) -> list[Change]:
        """What happens during the run."""
        return [change for change in self.changes if change.at_s is not None]

    def applied_to(self, fleet: Fleet) -> Fleet:
        """The fleet with what is otherwise from the beginning on. UsageError where that cannot be."""
        plan, assumed = fleet.plan, list(fleet.assumed)
        for change in self.changes:
            change.check(plan)
            if isinstance(change, Add):
                assumed += change.assumed(plan)
            if change.at_s is None:
                plan = change.planned(plan)
        gone = {change.cell for change in self.changes if isinstance(change, Lose)}
        if not set(_names(plan)) - gone:
            raise UsageError("--lose: no cell is left that requests could go to")
        return replace(fleet, plan=plan, assumed=tuple(assumed))


def _names(plan: WorldPlan) -> list[str]:
    return [cell.name for cell in plan.cells]


def _with(plan: WorldPlan, name: str, changed: Callable[[CellPlan], CellPlan]) -> WorldPlan:
    return replace(plan, cells=tuple(changed(cell) if cell.name == name else cell for cell in plan.cells))


def _sized(servers: tuple[ServerPlan, ...], count: int) -> tuple[ServerPlan, ...]:
    first = servers[0]
    if isinstance(first, RatePlan):
        return (replace(first, weight=float(count)),)
    return (*servers, *(first,) * count)[:count]


def _slowed(cell: CellPlan, factor: float) -> CellPlan:
    """Also the curve that its leaves know is that of slow servers."""
    curve = cell.curve and msgspec.structs.replace(cell.curve, a=cell.curve.a * factor, b=cell.curve.b * factor)
    return replace(cell, servers=tuple(_slower(server, factor) for server in cell.servers), curve=curve)


def _slower(server: ServerPlan, factor: float) -> ServerPlan:
    match server:
        case BatchingPlan():
            return replace(server, time_factor=server.time_factor / factor)
        case RatePlan(curve):
            return replace(server, curve=msgspec.structs.replace(curve, a=curve.a * factor, b=curve.b * factor))
    raise AssertionError("fleets have these two kinds of servers")


def _when(at_s: float | None) -> str:
    return "" if at_s is None else f" at {at_s:g} s"
