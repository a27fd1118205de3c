"""An error that a server answered with, kept back while another target may do better.

If none does, it is what the client gets: the last real response, not one of ours.
"""

from __future__ import annotations

from typing import Final

from dlbctl.core.events import Failure
from dlbctl.core.tier import BUSY_STATUSES
from dlbctl.router.http1 import Headers

# An answer that says no is short; one longer than this is passed on instead of being tried elsewhere.
KEPT_BYTES: Final = 64 * 1024
# What llama.cpp says, with a 503, until it can work.
LOADING: Final = b"Loading model"
# What a leaf tells a root beside its own no: the reason code.
NO_HEADER: Final = b"dlb-no"
# Reasons that hold for this one request, or that the cell's load in the leaf's reports tells better than a pause
# would: others, more urgent or more patient, may well find room there.
FOR_WANT_OF_ROOM: Final = frozenset(
    {
        b"queue_deadline",
        b"queue_full",
        b"queue_shed",
        b"queue_timeout",
        b"all_servers_full",
        b"endpoint_full",
        b"router_full",
    }
)


class KeptAnswer:
    """Its head as it came, and its body as far as it has come."""

    def __init__(self, status: int, reason: bytes, headers: Headers) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.body = b""

    def __repr__(self) -> str:
        return f"<KeptAnswer {self.status}, {len(self.body)} bytes>"

    def has_room_for(self, pieces: list[bytes]) -> bool:
        """Whether it stays short enough to be kept."""
        return len(self.body) + sum(map(len, pieces)) <= KEPT_BYTES

    @property
    def failure(self) -> Failure:
        """What it says of the attempt."""
        if self._header(NO_HEADER) in FOR_WANT_OF_ROOM:
            return Failure.NO_ROOM
        if self.status == 503 and LOADING in self.body:
            return Failure.LOADING
        return Failure.BUSY if self.status in BUSY_STATUSES else Failure.ERROR

    @property
    def retry_after_s(self) -> float:
        """How long the server asks to be left alone, 0 where it does not say so in seconds."""
        value = self._header(b"retry-after")
        return float(value) if value.isdigit() else 0.0

    @property
    def framing(self) -> bytes:
        """The header lines it gets from us: the body is whole, and whoever is busy says for how long."""
        lines = b"content-length: %d\r\n" % len(self.body)
        says_when = self.status not in BUSY_STATUSES or self._header(b"retry-after")
        return lines if says_when else lines + b"retry-after: 1\r\n"

    def _header(self, wanted: bytes) -> bytes:
        return next((value for name, value in self.headers if name == wanted), b"")
