"""A world of roots, leaves and servers in virtual time. The routers are the live ones' own tiers.

A probe round is one event: every leaf takes down its state, and every root hears of each leaf the state that has had
the time to come to it. So a state is as old as the way is long, rounded up to whole rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Final

import xxhash

from dlbctl.core.events import AdminState, Probe
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from dlbctl.sim.agenda import Agenda
from dlbctl.sim.journey import Journey
from dlbctl.sim.nodes import LeafNode, RootNode
from dlbctl.sim.plan import MODEL, CellPlan, ServerPlan, WorldPlan

if TYPE_CHECKING:
    from dlbctl.sim.arrivals import Request
    from dlbctl.sim.observe import Observer
    from dlbctl.sim.servers.server import Server

# How often waits for a first byte are looked at, as a router's wheel does.
WATCH_S: Final = 1.0

PING_S: Final = 1.0

TierFactory = Callable[[TierSettings, str], Tier]


class World:
    """What happens when these requests come to this fleet. All of it is a function of plan and requests.

    Raises UsageError for a plan that cannot be. tier_of: makes the tiers; a recorder's, to have their events written
    down.
    """

    def __init__(
        self, plan: WorldPlan, arrivals: Iterator[Request], observer: Observer, tier_of: TierFactory = Tier
    ) -> None:
        plan.check()
        self.plan = plan
        self.observer = observer
        self.agenda = Agenda()
        self._faults = Random(f"{plan.seed}/faults")  # noqa: S311 - chance, no secrecy
        self._loss = Random(f"{plan.seed}/losses")  # noqa: S311
        self._tier_of = tier_of
        self._arrivals = arrivals
        self._coming: Request | None = None
        self._turns = [0] * len(plan.sources)
        self._servers: list[dict[str, Server]] = [{} for _ in plan.cells]
        self._plans: list[tuple[ServerPlan, ...]] = [() for _ in plan.cells]
        for number, cell in enumerate(plan.cells):
            self._equip(number, cell.servers)
        self.leaves = [self._leaf(number, index) for number, index in self._places(plan.leaves_per_cell)]
        self._by_address = {leaf.address: leaf for leaf in self.leaves}
        self.roots = [
            self._root(source, index) for source in range(len(plan.sources)) for index in range(plan.roots_per_source)
        ]
        self._start()

    def __repr__(self) -> str:
        return f"<World at {self.now_s:.3f} s, {self.in_flight} in flight>"

    @property
    def now_s(self) -> float:
        """Virtual time since the world's begin."""
        return self.agenda.now_s

    @property
    def in_flight(self) -> int:
        """Requests that are under way."""
        return sum(len(root.open) for root in self.roots)

    @property
    def exhausted(self) -> bool:
        """No further request comes."""
        return self._coming is None

    def run(self, until_s: float) -> None:
        """Let the world go on until then. It can be told to go on later."""
        self.agenda.run(until_s)

    def finish(self, limit_s: float) -> None:
        """Go on until every request has come and is over, or until limit_s."""
        while self.now_s < limit_s and not (self.exhausted and self.in_flight == 0):
            self.run(min(self.now_s + WATCH_S, limit_s))

    # -- changes -----------------------------------------------------------------------------------------

    def at(self, time_s: float, change: Callable[[World], None]) -> None:
        """Have something changed at a time: `world.at(60.0, lambda w: w.slow_down(0, 3.0))`."""
        self.agenda.at(time_s, lambda: change(self))

    def resize(self, cell: int, servers: tuple[ServerPlan, ...]) -> None:
        """Have the cell consist of these from now on.

        Servers whose plan stays go on. Others are taken out, and finish what they have begun; new ones are idle.
        """
        self._equip(cell, servers)
        for leaf in self._leaves_of(cell):
            self._set_servers(leaf, servers)

    def slow_down(self, cell: int, factor: float) -> None:
        """Have the servers that the cell has now take so many times as long for work that starts from now on."""
        for leaf in self._leaves_of(cell):
            for server in leaf.servers.values():
                server.slowness = factor

    def fail(self, cell: int, share: float) -> None:
        """Have the cell's servers answer so large a share of their requests with 500."""
        for leaf in self._leaves_of(cell):
            leaf.failing = share

    def lose(self, cell: int) -> None:
        """The cell is gone: what is under way there is cut off, connections are refused, roots hear it no more."""
        for leaf in self._leaves_of(cell):
            leaf.lost = True
            for guest in list(leaf.open.values()):
                guest.lose()
            for root in self.roots:
                self.agenda.at(self.now_s + root.one_way_s[cell], self._silence(root, leaf))
        plans, self._plans[cell] = self._plans[cell], ()
        self._equip(cell, plans)

    def restore(self, cell: int) -> None:
        """The cell is back, idle."""
        for leaf in self._leaves_of(cell):
            leaf.lost = False

    def drain(self, cell: int, *, drained: bool = True) -> None:
        """An operator takes the cell out at every root, or puts it back."""
        state = AdminState.DRAIN if drained else AdminState.READY
        for root in self.roots:
            root.tier.admin_set(self.now_s, self.plan.cells[cell].name, "", state)

    def set_policy(self, policy: str) -> None:
        """Switch every root. ConfigError for a policy that does not exist."""
        for root in self.roots:
            root.tier.policy_set(self.now_s, MODEL, policy)

    # -- what journeys ask for ---------------------------------------------------------------------------

    def leaf_at(self, address: str) -> LeafNode:
        """The leaf with that address."""
        return self._by_address[address]

    # -- what happens by itself --------------------------------------------------------------------------

    def _start(self) -> None:
        """Everything answers, and the roots know it, before the first request."""
        agenda = self.agenda
        lags = [max(root.lag[number] for root in self.roots) for number in range(len(self.plan.cells))]
        for leaf in self.leaves:
            leaf.probe_servers()
            leaf.remember(lags[leaf.cell])
            leaf.tick()
        self._ping()
        for root in self.roots:
            self._hear(root, lossy=False)
            root.tick()
        agenda.at(self.plan.probe_interval_s, self._round)
        agenda.at(WATCH_S, self._watch)
        self._next()

    def _next(self) -> None:
        self._coming = next(self._arrivals, None)
        if self._coming is not None:
            self.agenda.at(self._coming.at_s, self._arrive)

    def _arrive(self) -> None:
        request = self._coming
        assert request is not None
        source = request.source
        turn = self._turns[source]
        self._turns[source] = (turn + 1) % self.plan.roots_per_source
        root = self.roots[source * self.plan.roots_per_source + turn]
        Journey(self, root, request).start()
        self._next()

    def _round(self) -> None:
        for leaf in self.leaves:
            leaf.report()
        lossy = self.plan.probe_loss > 0.0
        for root in self.roots:
            self._hear(root, lossy=lossy)
        self.agenda.at(self.now_s + self.plan.probe_interval_s, self._round)

    def _hear(self, root: RootNode, *, lossy: bool) -> None:
        now_s, tier = self.agenda.now_s, root.tier
        for leaf in self.leaves:
            if leaf.lost or (lossy and self._loss.random() < self.plan.probe_loss):
                continue
            cell = leaf.cell
            state = leaf.state(root.lag[cell])
            tier.state_reported(now_s, state.cell, leaf.address, state, 2.0 * root.one_way_s[cell])

    def _ping(self) -> None:
        """Roots tell leaves where they stand, and their news, once a second, as pings do."""
        now_s = self.now_s
        for root in self.roots:
            for leaf in self.leaves:
                if not leaf.lost:
                    news = root.tier.news(now_s, leaf.tier.settings.cell, leaf.address)
                    leaf.tier.pinged(now_s, root.tier.settings.cell, 2.0 * root.one_way_s[leaf.cell], news)
        self.agenda.at(self.now_s + PING_S, self._ping)

    def _watch(self) -> None:
        for leaf in self.leaves:
            for exchange in leaf.watch():
                guest = leaf.open[exchange.number]
                sent_s = guest.served_since_s()
                if sent_s is not None and leaf.is_overdue(exchange, sent_s):
                    guest.overdue(exchange)
            leaf.give_turns()  # room that came by time alone
        for root in self.roots:
            for exchange in root.watch():
                journey = root.open[exchange.number]
                if journey.attempt is not None and root.is_overdue(exchange, journey.attempt.sent_s):
                    journey.overdue()
        self.agenda.at(self.now_s + WATCH_S, self._watch)

    def _silence(self, root: RootNode, leaf: LeafNode) -> Callable[[], None]:
        def notice() -> None:
            if leaf.lost:
                cell = self.plan.cells[leaf.cell].name
                root.tier.address_changed(self.now_s, cell, leaf.address, False)

        return notice

    # -- building ----------------------------------------------------------------------------------------

    def _places(self, each: int) -> list[tuple[int, int]]:
        return [(cell, index) for cell in range(len(self.plan.cells)) for index in range(each)]

    def _leaves_of(self, cell: int) -> list[LeafNode]:
        return [leaf for leaf in self.leaves if leaf.cell == cell]

    def _leaf(self, number: int, index: int) -> LeafNode:
        plan, cell = self.plan, self.plan.cells[number]
        settings = TierSettings(
            "leaf",
            cell.name,
            endpoints=(plan.leaf_endpoint,),
            timeouts=plan.timeouts,
            seed=self._seed("leaf", number, index),
            retries=plan.retries,
            health=plan.health,
            queue=plan.queue(cell),
        )
        boot = f"leaf-{number}-{index}"
        leaf = LeafNode(
            self.agenda,
            self._tier_of(settings, boot),
            number,
            _address(cell, index),
            self._servers[number],
            self._faults,
            told=cell.curve,
            factor=cell.curve_factor,
        )
        self._set_servers(leaf, cell.servers)
        return leaf

    def _equip(self, number: int, plans: tuple[ServerPlan, ...]) -> None:
        """Make the servers that the cell does not have yet."""
        before, name = self._plans[number], self.plan.cells[number].name
        for index, plan in enumerate(plans):
            if index >= len(before) or plan != before[index]:
                rng = Random(f"{self.plan.seed}/{name}/{index} at {self.now_s}")  # noqa: S311
                self._servers[number][f"{name}/{index}"] = plan.make(self.agenda, rng)
        self._plans[number] = plans

    def _set_servers(self, leaf: LeafNode, plans: tuple[ServerPlan, ...]) -> None:
        cell = self.plan.cells[leaf.cell]
        settings = []
        for index, plan in enumerate(plans):
            name = f"{cell.name}/{index}"
            settings.append(TargetSettings(name, (name,), (MODEL,), weight=plan.weight, slots=cell.slots))
        leaf.tier.targets_changed(settings)
        for one in settings:
            leaf.tier.probed(self.now_s, one.name, one.name, Probe.OK)

    def _root(self, source: int, index: int) -> RootNode:
        plan = self.plan
        place = plan.sources[source]
        settings = TierSettings(
            "root",
            place,
            targets=tuple(
                TargetSettings(
                    cell.name,
                    tuple(_address(cell, leaf) for leaf in range(plan.leaves_per_cell)),
                    capacity_rps=cell.capacity_rps,
                )
                for cell in plan.cells
            ),
            endpoints=(plan.root_endpoint,),
            timeouts=plan.timeouts,
            seed=self._seed("root", source, index),
            retries=plan.retries,
        )
        one_way_s = [plan.one_way_s[place, cell.name] for cell in plan.cells]
        tier = self._tier_of(settings, f"root-{source}-{index}")
        return RootNode(self.agenda, tier, source, one_way_s, plan.probe_interval_s)

    def _seed(self, role: str, number: int, index: int) -> int:
        return xxhash.xxh3_64_intdigest(f"{self.plan.seed}/{role}/{number}/{index}".encode()) >> 16


def _address(cell: CellPlan, leaf: int) -> str:
    return f"{cell.name}#{leaf}"
