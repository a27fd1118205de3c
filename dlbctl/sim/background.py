"""A simulated leaf's own requests: they begin and end inside it, as those that `router/background.py` makes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.core.events import Arrival, Explore, Failure, Forward, Reject, RequestAction, Usage
from dlbctl.sim.guest import Guest
from dlbctl.sim.servers.server import Job, Server

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange
    from dlbctl.sim.nodes import LeafNode


class Exploring(Guest):
    """One of them, from its making to its end. Nobody is told how it ends but the tier."""

    def __init__(self, leaf: LeafNode, explore: Explore) -> None:
        self.leaf = leaf
        self._explore = explore
        self._exchange: Exchange | None = None
        self._work: ExploringWork | None = None
        self._sent_s = 0.0

    def __repr__(self) -> str:
        return f"<Exploring {self._exchange}>"

    def start(self) -> None:
        """Have it arrive."""
        wanted = self._explore
        arrival = Arrival("", wanted.endpoint, 0, float(wanted.prompt_tokens), wanted.output_tokens, background=True)
        self._do(self.leaf.tier.arrived(self.leaf.agenda.now_s, arrival))

    def _do(self, action: RequestAction) -> None:
        leaf = self.leaf
        if not isinstance(action, Forward):
            self._left()
            return
        now_s, exchange = leaf.agenda.now_s, action.exchange
        self._exchange = exchange
        leaf.open[exchange.number] = self
        leaf.tier.attempt_started(now_s, exchange)
        if leaf.fails():
            self._end(500, None)
            return
        server = leaf.servers[action.address]
        self._sent_s = now_s
        self._work = work = ExploringWork(self, self._explore, server)
        if not server.submit(work):
            self._work = None
            self._do(leaf.tier.attempt_failed(now_s, exchange, Failure.BUSY, True, False, False, 0.0))

    def begun(self) -> None:
        """The server has made the first token."""
        assert self._exchange is not None
        self.leaf.tier.first_byte(self.leaf.agenda.now_s, self._exchange, 200)

    def finished(self, status: int, usage: Usage | None) -> None:
        """The server is done with it."""
        self._work = None
        self._end(status, usage)

    def _end(self, status: int, usage: Usage | None) -> None:
        assert self._exchange is not None
        self.leaf.tier.ended(self.leaf.agenda.now_s, self._exchange, status, usage, 0.0)
        self._left()

    def _left(self) -> None:
        if self._exchange is not None:
            del self.leaf.open[self._exchange.number]
            self._exchange = None
            self.leaf.give_turns()

    # -- as the leaf's guest -----------------------------------------------------------------------------

    def turned(self, action: Forward | Reject) -> None:  # noqa: ARG002 - a base class's signature
        """It never waits."""
        raise AssertionError("a request of a leaf's own waits for nobody's turn")

    def served_since_s(self) -> float | None:
        """When its server got it."""
        return self._sent_s if self._work is not None else None

    def overdue(self, exchange: Exchange) -> None:
        """Its server has taken too long."""
        self._abandon()
        self._do(self.leaf.tier.expired(self.leaf.agenda.now_s, exchange, False))

    def lose(self) -> None:
        """Gone, with its cell."""
        exchange = self._exchange
        assert exchange is not None
        self._abandon()
        self.leaf.tier.client_gone(self.leaf.agenda.now_s, exchange)
        self._left()

    def _abandon(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.server.abandon(work)


class ExploringWork(Job):
    """What one server has to do of it. No block of its prompt was ever seen."""

    def __init__(self, exploring: Exploring, explore: Explore, server: Server) -> None:
        super().__init__(explore.prompt_tokens, explore.output_tokens, ())
        self.server = server
        self._exploring = exploring

    def begin(self) -> None:
        """The first token is there."""
        if not self.abandoned:
            self._exploring.begun()

    def finish(self) -> None:
        """The last token is there."""
        if not self.abandoned:
            self._exploring.finished(200, Usage(self.prompt_tokens, self.output_tokens))

    def too_large(self) -> None:
        """No such server takes it."""
        self._exploring.finished(400, None)
