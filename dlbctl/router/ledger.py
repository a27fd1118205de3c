"""The ledger: every request is in it once while it is open, and is counted and written down once when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.router.reasons import DRAIN_TIMEOUT
from dlbctl.router.record import Record
from dlbctl.router.tally import Tally

if TYPE_CHECKING:
    from dlbctl.core.events import Usage
    from dlbctl.core.tier import Tier
    from dlbctl.router.access_log import AccessLog
    from dlbctl.router.relay import Relay
    from dlbctl.router.request import Refusal, Request


class Ledger:
    """Of one router. open: relays under way, by number. access_log: None when none is kept."""

    def __init__(self, tier: Tier) -> None:
        self.open: dict[int, Relay] = {}
        self.tally = Tally(tier)
        self.access_log: AccessLog | None = None
        self._last_number = 0

    def __repr__(self) -> str:
        return f"<Ledger {len(self.open)} open>"

    def next_number(self) -> int:
        """A number for a request, of this router alone."""
        self._last_number += 1
        return self._last_number

    def opened(self, relay: Relay) -> None:
        """A request sets out."""
        self.open[relay.record.number] = relay

    def ended(self, record: Record, now_s: float, status: int, code: str, usage: Usage | None = None) -> None:
        """A request is over, on whatever path; twice would raise. status: 0 when nothing was sent."""
        del self.open[record.number]
        self._close(record, now_s, status, code, usage)

    def refused(self, request: Request, address: bytes, refusal: Refusal, now_s: float, bytes_out: int) -> None:
        """A request was answered with an error and never set out."""
        record = Record(0, request.id.decode("latin-1"), "", request, address, peer=False)
        record.bytes_out = bytes_out
        self._close(record, now_s, refusal.status, refusal.code, None)

    def explored(self, record: Record, now_s: float, status: int, code: str, usage: Usage | None) -> None:
        """A request of a leaf's own is over: it is written down, and counts among no user's."""
        if self.access_log is not None:
            self.access_log.note(record, now_s, status, code, usage)

    def drain_is_over(self) -> None:
        """What is open now will be cut: not because its clients left."""
        for relay in self.open.values():
            relay.record.left_as = DRAIN_TIMEOUT

    def _close(self, record: Record, now_s: float, status: int, code: str, usage: Usage | None) -> None:
        self.tally.count(record, now_s, status, code)
        if self.access_log is not None:
            self.access_log.note(record, now_s, status, code, usage)
