"""Open requests as operators see them: no text, no headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from dlbctl.router.ledger import Ledger
    from dlbctl.router.record import Record


class RequestRow(Struct, kw_only=True):
    """One open request.

    id: the client's, or made here; clients may repeat theirs. number: of this router alone, told in `kill --number`.
    phase: how far it has come. cell, server: where it was sent last, empty where that is not known (yet).
    priority: the more, the sooner it leaves a queue. client: the address it came from, for a leaf the one its root saw.
    bytes_out: sent to the client so far.
    """

    id: str
    number: int
    endpoint: str
    age_s: float
    phase: str
    cell: str
    server: str
    attempts: int
    priority: int
    client: str
    bytes_out: int


def open_requests(ledger: Ledger, now_s: float) -> list[RequestRow]:
    """Every open request, the oldest first."""
    return [_row(relay.record, now_s) for relay in ledger.open.values()]


def _row(record: Record, now_s: float) -> RequestRow:
    return RequestRow(
        id=record.id,
        number=record.number,
        endpoint=record.endpoint,
        age_s=now_s - record.request.received_s,
        phase=record.phase,
        cell=record.cell.decode(),
        server=record.server.decode("utf-8", "replace"),
        attempts=record.attempts,
        priority=record.priority,
        client=record.client,
        bytes_out=record.bytes_out,
    )
