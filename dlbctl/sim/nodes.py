"""Simulated routers: a tier with its timer, and what stands around it."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import ceil
from random import Random
from typing import TYPE_CHECKING

from dlbctl.core.events import Explore, Probe, State
from dlbctl.core.exchange import Phase
from dlbctl.core.programs import UnsolvedError, solve
from dlbctl.core.tier import Tier
from dlbctl.sim.agenda import Agenda
from dlbctl.sim.background import Exploring
from dlbctl.sim.guest import Guest
from dlbctl.sim.plan import MODEL
from dlbctl.sim.servers.server import Server

if TYPE_CHECKING:
    from dlbctl.core.curve import Curve
    from dlbctl.core.exchange import Exchange
    from dlbctl.sim.journey import Journey


class Node:
    """A router: its tier."""

    def __init__(self, agenda: Agenda, tier: Tier) -> None:
        self.agenda = agenda
        self.tier = tier

    def tick(self) -> None:
        """Fire the tier's timer, and again when it asks for it. Programs are solved in no time."""
        now_s, tier = self.agenda.now_s, self.tier
        timer = tier.timer_fired(now_s)
        for wanted in timer.solve:
            with suppress(UnsolvedError):
                tier.solved(now_s, wanted.endpoint, solve(wanted.program))
        for explore in timer.explore:
            self.explore(explore)
        self.agenda.at(max(timer.at_s, now_s), self.tick)

    def explore(self, explore: Explore) -> None:
        """Make a request of its own. Only leaves are asked to."""
        raise NotImplementedError

    def watch(self) -> list[Exchange]:
        """Exchanges that may have waited too long for their first byte. The oldest come first."""
        now_s, tier = self.agenda.now_s, self.tier
        found = []
        for exchange in tier.exchanges.values():
            limit_s = tier.timeouts(exchange.endpoint).first_byte_s
            if not 0.0 < limit_s <= now_s - exchange.arrived_s:
                break
            if exchange.phase is Phase.WAITING:
                found.append(exchange)
        return found

    def is_overdue(self, exchange: Exchange, sent_s: float) -> bool:
        """Whether the attempt that was sent then has waited too long."""
        return self.agenda.now_s - sent_s >= self.tier.timeouts(exchange.endpoint).first_byte_s


class LeafNode(Node):
    """A leaf of a cell. Its states are kept for as long as the farthest root is away.

    open: guests by the number of their exchange. servers: the cell's by address, which its leaves share. lost: it does
    not answer. failing: share of its requests that servers fail, chosen by faults. told: the curve that it reports
    instead of one that it fits. factor: what it multiplies its curves with.
    """

    def __init__(
        self,
        agenda: Agenda,
        tier: Tier,
        cell: int,
        address: str,
        servers: dict[str, Server],
        faults: Random,
        *,
        told: Curve | None,
        factor: float,
    ) -> None:
        super().__init__(agenda, tier)
        self.open: dict[int, Guest] = {}
        self.cell = cell
        self.address = address
        self.servers: dict[str, Server] = servers
        self.lost = False
        self.failing = 0.0
        self._faults = faults
        self._told = told
        self._factor = factor
        self._skewed: Curve | None = None
        self._giving_turns = False
        self._queue = tier.endpoints[MODEL].queue
        self._states: deque[State] = deque(maxlen=1)
        if told is not None:
            tier.estimators.clear()

    def remember(self, rounds: int) -> None:
        """Keep states for so many rounds, all as it is now."""
        self._states = deque([self._report()] * (rounds + 1), rounds + 1)

    def report(self) -> None:
        """Take down a state for this round."""
        self._states.append(self._report())

    def state(self, rounds: int) -> State:
        """What it reported so many rounds ago."""
        return self._states[-1 - rounds]

    def probe_servers(self) -> None:
        """Ask each server whether it is well."""
        now_s = self.agenda.now_s
        for target in list(self.tier.targets.values()):
            self.tier.probed(now_s, target.name, target.addresses[0], Probe.OK)
        self.agenda.at(now_s + self.tier.settings.health.interval_s, self.probe_servers)

    def fails(self) -> bool:
        """Whether a server fails the request that it gets now."""
        return self.failing > 0.0 and self._faults.random() < self.failing

    def explore(self, explore: Explore) -> None:
        """Have a request of its own arrive. None does where the whole cell is gone."""
        if not self.lost:
            Exploring(self, explore).start()

    def give_turns(self) -> None:
        """There may be room: send who waits. What that sets in motion is seen by the loop that is running already."""
        if self._giving_turns or self.lost or not self._queue:
            return
        self._giving_turns = True
        while (turn := self.tier.turn(self.agenda.now_s)) is not None:
            self.open[turn.exchange.number].turned(turn.action)
        self._giving_turns = False

    def _report(self) -> State:
        state = self.tier.report(self.agenda.now_s)
        mine = state.endpoints[MODEL]
        if self._told is not None:
            mine.curve, mine.curve_version = self._told, 1
        if self._factor != 1.0 and mine.curve is not None:
            if self._skewed is None or self._skewed.version != mine.curve_version:
                self._skewed = mine.curve.perturbed(self._factor)
            mine.curve = self._skewed
            if mine.tail is not None:
                mine.tail = mine.tail.perturbed(self._factor)
        return state


class RootNode(Node):
    """A root. open: journeys by the number of their exchange. one_way_s: to each cell, by its number.

    lag: rounds that a state is old when it is heard here.
    """

    def __init__(self, agenda: Agenda, tier: Tier, source: int, one_way_s: list[float], interval_s: float) -> None:
        super().__init__(agenda, tier)
        self.open: dict[int, Journey] = {}
        self.source = source
        self.one_way_s = one_way_s
        self.lag = [ceil(delay_s / interval_s - 1e-9) for delay_s in one_way_s]
