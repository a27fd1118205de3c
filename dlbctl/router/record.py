"""What is told of one request: to operators while it is open, to metrics and the access log when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.router.reasons import CLIENT_GONE, Phase

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.tier import Tier
    from dlbctl.router.request import Request


class Record:
    """Filled in as the request goes its way. Its times are the router's clock's, 0 for what has not happened.

    number: of this router alone, 0 for a request that was not relayed (the client's ids may repeat).
    attempts: how often it was sent somewhere. cell, server: where it was sent last, as far as is known here.
    """

    # Defaults stand here and not in the initialiser: most requests change few of them.
    background = False  # nobody's: the leaf made it
    cell = b""
    server = b""
    attempts = 0
    priority = 0
    written_s = 0.0
    begun_s = 0.0
    queued_s = 0.0  # since when it waits in an admission queue
    waited_s = 0.0  # how long it did before
    bytes_out = 0
    left_as = CLIENT_GONE  # the reason code, should the client's connection end now
    complete = False

    def __init__(
        self, number: int, identity: str, endpoint: str, request: Request, address: bytes, *, peer: bool
    ) -> None:
        self.number = number
        self.id = identity
        self.endpoint = endpoint
        self.request = request
        self.peer = peer
        self._address = address

    def __repr__(self) -> str:
        return f"<Record {self.number} {self.id!r} {self.endpoint!r}, {self.phase}>"

    def sent_to(self, tier: Tier, exchange: Exchange) -> None:
        """It is on its way to the target that the innermost tier chose."""
        self.attempts += 1
        self.written_s = 0.0
        candidate = exchange.candidate
        assert candidate is not None
        if tier.role == "leaf":
            self.cell, self.server = tier.cell_label, candidate.target.label
        else:
            self.cell, self.server = candidate.target.label, b""

    def queue_up(self, now_s: float) -> None:
        """It waits for a server with room."""
        if self.queued_s:
            self.take_turn(now_s)  # in the queue of another leaf
        self.queued_s = now_s
        self.written_s = 0.0

    def take_turn(self, now_s: float) -> None:
        """Its waiting in a queue is over, and not the request."""
        self.waited_s += now_s - self.queued_s
        self.queued_s = 0.0

    def overhead_s(self) -> float | None:
        """From its being whole to its being written, less the wait for room; of one sent twice it cannot be told."""
        if self.attempts != 1 or not self.written_s:
            return None
        return self.written_s - self.request.received_s - self.waited_s

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        if self.complete:
            return Phase.COMPLETE
        if self.begun_s:
            return Phase.STREAMING
        if self.written_s:
            return Phase.WAITING
        if self.queued_s:
            return Phase.QUEUED
        if self.attempts:
            return Phase.CONNECTING
        return Phase.ROUTING if self.number else Phase.READING

    @property
    def client(self) -> str:
        """The client's address; of a request that a root passed on, the one that the root saw."""
        address = self._address
        if self.peer and self.request.forwarded_for:
            address = self.request.forwarded_for.removesuffix(b", ").rpartition(b",")[2].strip()
        return address.decode("latin-1")

    def from_peer(self, name: bytes) -> str:
        """A header that only a peer's word is taken for."""
        return self.request.header(name).decode("latin-1") if self.peer else ""
