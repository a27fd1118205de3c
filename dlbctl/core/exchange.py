"""One request's life in one tier: where it was sent, which phase it is in, what it still owes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dlbctl.core.endpoint import Endpoint
    from dlbctl.core.events import Arrival
    from dlbctl.core.target import Candidate


NEVER: Final = float("inf")


class Phase(IntEnum):
    """What an exchange is waiting for."""

    QUEUED = 0  # room: nothing has been sent anywhere
    CONNECTING = 1
    WAITING = 2  # the request is written, nothing has been answered
    STREAMING = 3
    DONE = 4


# MOVES[from][to], in the order of Phase. A retry goes back to CONNECTING (or QUEUED), but never once an answer
# has begun. An outer tier, whose inner one retries by itself, sees the same attempt start twice: WAITING to WAITING.
# A matrix, because a member of an enum in a set costs a Python call to hash.
MOVES: Final[tuple[tuple[bool, ...], ...]] = (
    (False, True, False, False, True),
    (True, True, True, False, True),
    (True, True, True, True, True),
    (False, False, False, False, True),
    (False, False, False, False, False),
)


class Exchange:
    """A request in flight in one tier. Counted against one candidate at a time, against none while it is queued.

    number: the tier's own, for logs. deadline_s: when its client stops waiting for it to begin. queued_s: when it
    began to wait for room. retrying: this attempt is charged to the endpoint's budget of retries.
    extra_tokens: prompt tokens beyond the endpoint's usual. load_at_arrival: requests per server in the cell when it
    came. first_byte_s: when its answer began. stalled_s: when its client first fell behind.
    prefill_s, decode_s: the work charged to the server, in seconds of one standard server.
    """

    # Defaults stand here and not in the initialiser: one is made for every request.
    phase = Phase.CONNECTING
    attempts = 0
    candidate: Candidate | None = None
    address = ""
    rule = ""
    tried: tuple[str, ...] = ()
    retrying = False
    deadline_s = NEVER
    queued_s = 0.0
    prompt_tokens = 0.0
    extra_tokens = 0.0
    output_tokens = 0.0
    load_at_arrival = 0.0
    first_byte_s = NEVER
    stalled_s = NEVER
    prefill_s = 0.0
    decode_s = 0.0

    def __init__(self, number: int, arrival: Arrival, endpoint: Endpoint, now_s: float) -> None:
        self.number = number
        self.arrival = arrival
        self.endpoint = endpoint
        self.arrived_s = now_s

    def __repr__(self) -> str:
        where = self.candidate.target.name if self.candidate else "nowhere"
        return f"<Exchange {self.number} {self.endpoint.name} at {where}, {self.phase.name.lower()}>"

    @property
    def session(self) -> int:
        """A hash of the session that its client has named, 0 for none."""
        return self.arrival.session

    def move(self, phase: Phase) -> None:
        """Enter a phase; an illegal move is a bug and raises."""
        if not MOVES[self.phase][phase]:
            raise AssertionError(f"{self!r} cannot become {phase.name.lower()}")
        self.phase = phase
