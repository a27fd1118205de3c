"""One request's way through the simulated world, and back: the events of its life told to the tiers, in order.

It stands for `router.relay` on both hops. Connections are pooled and stand already, so an attempt starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dlbctl.core.events import Arrival, Cancel, Failure, Forward, Reject, RequestAction, Usage, Wait
from dlbctl.core.exchange import NEVER, Exchange, Phase
from dlbctl.core.tier import BUSY_STATUSES
from dlbctl.router.kept import FOR_WANT_OF_ROOM
from dlbctl.sim.guest import Guest
from dlbctl.sim.nodes import LeafNode, RootNode
from dlbctl.sim.plan import MODEL
from dlbctl.sim.servers.server import Job, Server

if TYPE_CHECKING:
    from dlbctl.sim.arrivals import Request
    from dlbctl.sim.world import World

# What English text has: the roots learn it, as they do live.
BYTES_PER_TOKEN: Final = 4


class Journey:
    """From a client to a root, a leaf, a server, and back."""

    ttft_s = NEVER
    exchange: Exchange | None = None  # at the root
    attempt: Attempt | None = None
    no: Reject | None = None  # the last leaf's refusal: the client's answer when nobody does better

    def __init__(self, world: World, root: RootNode, request: Request) -> None:
        self.world = world
        self.root = root
        self.request = request
        self.arrived_s = world.agenda.now_s

    def __repr__(self) -> str:
        return f"<Journey from {self.root.source}, {self.exchange}>"

    def start(self) -> None:
        """The root has read it whole."""
        request = self.request
        size = request.prompt_tokens * BYTES_PER_TOKEN
        arrival = Arrival("", MODEL, size, 0.0, request.max_output_tokens, session=request.session)
        self.do(self.root.tier.arrived(self.arrived_s, arrival))

    def do(self, action: RequestAction) -> None:
        """What the root says is to be done with it."""
        root, world = self.root, self.world
        if isinstance(action, Forward):
            exchange = action.exchange
            self.exchange = exchange
            root.open[exchange.number] = self
            root.tier.attempt_started(world.agenda.now_s, exchange)
            leaf = world.leaf_at(action.address)
            self.attempt = attempt = Attempt(self, leaf, exchange)
            world.agenda.at(world.agenda.now_s + attempt.one_way_s, attempt.arrive)
        elif isinstance(action, Reject):
            no = self.no or action
            self._leave(no.status, no.code)
        elif isinstance(action, Cancel):
            self._leave(200, action.code)
        else:
            raise AssertionError("a root never has a request wait")

    def failed(self, failure: Failure, written: bool, retry_after_s: float, no: Reject | None) -> None:
        """The attempt under way came to nothing, and nothing of an answer had come. no: what its leaf said."""
        assert self.exchange is not None
        self.no = no
        now_s = self.world.agenda.now_s
        self.do(self.root.tier.attempt_failed(now_s, self.exchange, failure, written, False, False, retry_after_s))

    def cut(self) -> None:
        """The connection that its answer was coming on is gone."""
        assert self.exchange is not None
        now_s, begun = self.world.agenda.now_s, self.ttft_s != NEVER
        self.no = None
        self.do(self.root.tier.attempt_failed(now_s, self.exchange, Failure.CLOSED, True, begun, False, 0.0))

    def first_byte(self, status: int) -> None:
        """The first byte of the answer is here."""
        assert self.exchange is not None
        now_s = self.world.agenda.now_s
        self.ttft_s = now_s - self.arrived_s
        self.root.tier.first_byte(now_s, self.exchange, status)

    def ended(self, status: int, usage: Usage | None, code: str) -> None:
        """The answer is whole."""
        assert self.exchange is not None
        self.root.tier.ended(self.world.agenda.now_s, self.exchange, status, usage, 0.0)
        self._leave(status, code)

    def overdue(self) -> None:
        """Its root has waited too long."""
        assert self.exchange is not None
        assert self.attempt is not None
        self.attempt.withdraw()
        self.no = None
        self.do(self.root.tier.expired(self.world.agenda.now_s, self.exchange, False))

    def _leave(self, status: int, code: str) -> None:
        exchange, attempt = self.exchange, self.attempt
        if exchange is not None:
            del self.root.open[exchange.number]
        server = attempt.server_name if attempt is not None else ""
        cell = attempt.leaf.cell if attempt is not None else -1
        now_s = self.world.agenda.now_s
        self.world.observer.ended(
            now_s,
            self.root.source,
            cell,
            server,
            self.arrived_s,
            now_s - self.arrived_s,
            self.ttft_s,
            status,
            code,
        )


class Attempt(Guest):
    """An attempt of the root's at one leaf. What comes back after it was withdrawn is dropped."""

    exchange: Exchange | None = None  # at the leaf
    work: Work | None = None
    server_name = ""
    withdrawn = False

    def __init__(self, journey: Journey, leaf: LeafNode, outer: Exchange) -> None:
        self.journey = journey
        self.agenda = leaf.agenda
        self.leaf = leaf
        self.outer = outer
        self.one_way_s = journey.root.one_way_s[leaf.cell]
        self.sent_s = leaf.agenda.now_s

    def arrive(self) -> None:
        """It has come to the leaf, with what the root knows of it."""
        leaf, outer, root = self.leaf, self.outer, self.journey.root.tier
        if self.withdrawn:
            return
        if leaf.lost:
            self._back(self._unreached)
            return
        arrival = Arrival(
            "",
            MODEL,
            outer.arrival.prompt_bytes,
            outer.prompt_tokens,
            int(outer.output_tokens + 0.5),
            root.boot,
            source=root.settings.cell,
            session=outer.arrival.session,
        )
        self.do(leaf.tier.arrived(self.agenda.now_s, arrival))

    def do(self, action: RequestAction) -> None:
        """What the leaf says is to be done with it."""
        leaf, agenda = self.leaf, self.agenda
        while isinstance(action, Forward):
            exchange = action.exchange
            self.exchange = exchange
            leaf.open[exchange.number] = self
            leaf.tier.attempt_started(agenda.now_s, exchange)
            self.server_name = action.address
            if leaf.fails():
                if not leaf.tier.keeps_back(exchange, 500):
                    self._declined(exchange, Reject(500, "upstream_error", ""))
                    return
                action = leaf.tier.attempt_failed(agenda.now_s, exchange, Failure.ERROR, True, False, False, 0.0)
                continue
            server = leaf.servers[action.address]
            self.work = Work(self, server)
            if server.submit(self.work):
                return
            action = leaf.tier.attempt_failed(agenda.now_s, exchange, Failure.BUSY, True, False, False, 0.0)
        if isinstance(action, Wait):
            self.exchange = action.exchange
            leaf.open[action.exchange.number] = self
            agenda.at(action.until_s, self._missing_its_turn(action.exchange))
            leaf.give_turns()
        elif isinstance(action, Reject):
            self._refused(action)
        else:
            raise AssertionError("nothing of an answer has come that could be cut")

    def begun(self) -> None:
        """The server has made the first token."""
        assert self.exchange is not None
        self.leaf.tier.first_byte(self.agenda.now_s, self.exchange, 200)
        self._back(self._begun)

    def finished(self, usage: Usage) -> None:
        """The server has made the last token."""
        self._ended(200, usage)
        self._back(lambda: self._finished(usage))

    def too_large(self) -> None:
        """The server will never take such a request, and that is passed on."""
        assert self.exchange is not None
        self._declined(self.exchange, Reject(400, "context_length_exceeded", ""))

    def withdraw(self) -> None:
        """The root gives it up: a client that leaves, to the leaf, which hears of it at once here."""
        self.withdrawn = True
        exchange = self.exchange
        if exchange is not None:
            self.exchange = None
            self._abandon()
            self.leaf.tier.client_gone(self.agenda.now_s, exchange)
            del self.leaf.open[exchange.number]
            self.leaf.give_turns()

    def turned(self, action: Forward | Reject) -> None:
        """Its waiting for room is over."""
        self.do(action)

    def served_since_s(self) -> float | None:
        """When its server got it."""
        return self.work.sent_s if self.work is not None else None

    def overdue(self, exchange: Exchange) -> None:
        """Its leaf has waited too long for the server's first token."""
        self._abandon()
        self.do(self.leaf.tier.expired(self.agenda.now_s, exchange, False))

    def lose(self) -> None:
        """The whole cell is gone, with whatever was there of it."""
        self.withdraw()
        self.withdrawn = False  # that it is cut is still to come to the root
        self._back(self._cut)

    # -- inside ------------------------------------------------------------------------------------------

    def _back(self, event: Callable[[], None]) -> None:
        self.agenda.at(self.agenda.now_s + self.one_way_s, event)

    def _unreached(self) -> None:
        if not self.withdrawn:
            self.journey.failed(Failure.REFUSED, False, 0.0, None)

    def _cut(self) -> None:
        if not self.withdrawn:
            self.journey.cut()

    def _begun(self) -> None:
        if not self.withdrawn:
            self.journey.first_byte(200)

    def _finished(self, usage: Usage) -> None:
        if not self.withdrawn:
            self.journey.ended(200, usage, "")

    def _ended(self, status: int, usage: Usage | None) -> None:
        leaf, exchange = self.leaf, self.exchange
        assert exchange is not None
        self.exchange = None
        self.work = None
        leaf.tier.ended(self.agenda.now_s, exchange, status, usage, 0.0)
        del leaf.open[exchange.number]
        leaf.give_turns()

    def _declined(self, exchange: Exchange, no: Reject) -> None:
        """The server answered so, in no time, and that is passed on."""
        self.leaf.tier.first_byte(self.agenda.now_s, exchange, no.status)
        self._ended(no.status, None)
        self._back(lambda: self._answered(no))

    def _missing_its_turn(self, exchange: Exchange) -> Callable[[], None]:
        since_s = exchange.queued_s

        def expire() -> None:
            if exchange.phase is Phase.QUEUED and exchange.queued_s == since_s:
                self.do(self.leaf.tier.expired(self.agenda.now_s, exchange, False))

        return expire

    def _refused(self, no: Reject) -> None:
        exchange = self.exchange
        if exchange is not None:
            self.exchange = None
            del self.leaf.open[exchange.number]
            self.leaf.give_turns()
        self._back(lambda: self._answered(no))

    def _answered(self, no: Reject) -> None:
        """An answer that says no has come back to the root; as `router.kept` judges it."""
        journey = self.journey
        if self.withdrawn:
            return
        if not journey.root.tier.keeps_back(self.outer, no.status):
            journey.first_byte(no.status)
            journey.ended(no.status, None, no.code)
            return
        if no.code.encode() in FOR_WANT_OF_ROOM:
            failure = Failure.NO_ROOM
        else:
            failure = Failure.BUSY if no.status in BUSY_STATUSES else Failure.ERROR
        journey.failed(failure, True, float(no.retry_after_s), no)

    def _abandon(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work.server.abandon(work)


class Work(Job):
    """What one server has to do of an attempt."""

    def __init__(self, attempt: Attempt, server: Server) -> None:
        request = attempt.journey.request
        super().__init__(request.prompt_tokens, request.output_tokens, request.block_hashes)
        self.attempt = attempt
        self.server = server
        self.sent_s = attempt.agenda.now_s

    def begin(self) -> None:
        """The first token is there."""
        if not self.abandoned:
            self.attempt.begun()

    def finish(self) -> None:
        """The last token is there."""
        if not self.abandoned:
            self.attempt.finished(Usage(self.prompt_tokens, self.output_tokens, self.cached_tokens))

    def too_large(self) -> None:
        """No such server takes it."""
        self.attempt.too_large()
