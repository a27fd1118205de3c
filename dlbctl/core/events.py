"""What happens to a tier (events) and what it answers (actions).

A tier is a deterministic function of its settings, its seed and these events with their times. On the
request path an event is a plain method call of `Tier` with the same name and fields; the structures here
are what a recorder writes and an offline run reads. Times are seconds on the driver's monotonic clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from dlbctl.core.curve import Curve
from dlbctl.core.news import News
from dlbctl.core.programs import Program, Solution
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange


class Failure(StrEnum):
    """Why an attempt ended without a complete answer."""

    REFUSED = "refused"  # no connection: refused, unreachable, name not found, TLS failed
    UNSEEN = "unseen"  # a pooled connection that the server had closed before the request came
    NO_ROOM = "no_room"  # it is alive and declined the request
    CONNECT_TIMEOUT = "connect_timeout"
    CLOSED = "closed"  # the connection ended before the answer did
    PROTOCOL = "protocol"  # the answer is not HTTP, or its head too large
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    BUSY = "busy"  # it answered 429 or 503: it did not begin
    LOADING = "loading"  # it answered that its model is still being loaded
    ERROR = "error"  # it answered with another 5xx


class Probe(StrEnum):
    """What a health probe of a server found."""

    OK = "ok"
    FAILED = "failed"  # no answer in time, or an error
    LOADING = "loading"
    REFUSED = "refused"


class AdminState(StrEnum):
    """What an operator wants of an address, apart from how it fares."""

    READY = "ready"
    DRAIN = "drain"  # nothing new; what is in flight there ends in its own time


class Arrival(Struct):
    """A request as the tier sees it: never its text.

    prompt_tokens: the root's estimate where there is one; 0 asks this tier for its own, from prompt_bytes.
    max_output_tokens: the request's own cap (or the root's expectation), 0 for none.
    root: boot id of the root it came through, and source: the cell that root stands in. priority: the more, the sooner
    it leaves a queue. patience_s: how long its client will wait for it to begin, 0 for ever. replayable: it can be sent
    twice. session: a hash of the session that its client has named, 0 for none.
    background: a leaf's own (`Explore`): no user waits for it.
    """

    id: str
    endpoint: str
    prompt_bytes: int = 0
    prompt_tokens: float = 0.0
    max_output_tokens: int = 0
    root: str = ""
    priority: int = 0
    patience_s: float = 0.0
    replayable: bool = True
    source: str = ""
    session: int = 0
    background: bool = False


class Usage(Struct):
    """Tokens as the engine counted them (`usage` of the answer)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class EndpointState(Struct, omit_defaults=True):
    """One endpoint in one cell, as its leaf reports it.

    rif: requests in flight on the servers of this endpoint. k: sum of the weights of its routable servers.
    queued_s: waiting work per unit of weight. errors, requests: decayed counts. received: requests received
    so far, by boot id of the root. arrivals: requests per second of late, by the cell of the root they came through.
    curve: only when its version is new to the listener, and so `tail`, that of the 95th percentile.
    prefill_s_per_token: what was learned of reading prompts, or 0.
    """

    rif: int = 0
    k: float = 0.0
    queued_s: float = 0.0
    errors: float = 0.0
    requests: float = 0.0
    received: dict[str, int] = {}
    arrivals: dict[str, float] = {}
    curve_version: int = 0
    curve: Curve | None = None
    tail_version: int = 0
    tail: Curve | None = None
    prefill_s_per_token: float = 0.0


class State(Struct, omit_defaults=True):
    """One line of the state stream: everything a root needs to know of a leaf.

    cell: the one that the leaf serves by its own configuration; empty from a leaf that does not say it yet.
    sources: one-way delay [s] from each cell whose roots ask this leaf, as they have told it.
    """

    v: int = 1
    boot: str = ""
    cell: str = ""
    seq: int = 0
    sources: dict[str, float] = {}
    endpoints: dict[str, EndpointState] = {}


# Actions ------------------------------------------------------------------------------------------------


class Forward(Struct):
    """Send the exchange to an address. fresh: on a new connection, because a pooled one just failed."""

    exchange: Exchange
    address: str
    rule: str
    fresh: bool = False


class Wait(Struct):
    """Keep the exchange until its turn comes (`Tier.turn`) or this time has passed (`Tier.expired`)."""

    exchange: Exchange
    until_s: float


class Reject(Struct):
    """Answer the client with an error of our own; nothing of an answer has been sent."""

    status: int
    code: str
    message: str
    retry_after_s: int = 0


class Cancel(Struct):
    """Give the exchange up: part of an answer has been sent, so the client must see it cut short."""

    code: str


class Solve(Struct, frozen=True):
    """Work a program out without holding anybody up, and tell of it with `solved`; nothing, should that fail."""

    endpoint: str
    program: Program


class Explore(Struct, frozen=True):
    """Make a request for the endpoint of this size, for nobody, and have it arrive at once (`Arrival.background`)."""

    endpoint: str
    prompt_tokens: int
    output_tokens: int


class SetTimer(Struct):
    """Call `timer_fired` at this time, and see to these programs and requests until then."""

    at_s: float
    solve: tuple[Solve, ...] = ()
    explore: tuple[Explore, ...] = ()


class Drift(Struct, frozen=True):
    """What an audit found and put right. leaked: exchanges nobody served any more. counts: what was miscounted."""

    leaked: tuple[int, ...] = ()
    counts: tuple[str, ...] = ()


RequestAction: TypeAlias = Forward | Wait | Reject | Cancel


class Turn(Struct):
    """One exchange's waiting is over: it is sent, or makes room for one that matters more."""

    exchange: Exchange
    action: Forward | Reject


# Events -------------------------------------------------------------------------------------------------


class Arrived(Struct, tag=True, frozen=True):
    """A request has been read whole."""

    arrival: Arrival


class AttemptStarted(Struct, tag=True, frozen=True):
    """The attempt has a connection and its request is on the way."""

    exchange: int


class FirstByte(Struct, tag=True, frozen=True):
    """The first byte of the answer's body is here: the prompt has been read."""

    exchange: int
    status: int


class Ended(Struct, tag=True, frozen=True):
    """The answer is complete. stalled_s: how long the client, not the server, held it up."""

    exchange: int
    status: int
    usage: Usage | None
    stalled_s: float


class AttemptFailed(Struct, tag=True, frozen=True):
    """The attempt ended without an answer that the client was given. retry_after_s: as the server asked, or 0."""

    exchange: int
    failure: Failure
    written: bool
    answered: bool
    reused: bool
    retry_after_s: float


class Stalled(Struct, tag=True, frozen=True):
    """The client reads slower than its answer comes, for the first time."""

    exchange: int


class ClientGone(Struct, tag=True, frozen=True):
    """The client left before the answer was complete."""

    exchange: int


class Expired(Struct, tag=True, frozen=True):
    """The phase the exchange is in (or the whole exchange) lasted longer than it may."""

    exchange: int
    total: bool


class StateReported(Struct, tag=True, frozen=True):
    """A leaf reported its state; rtt_s is the round trip to it as known now."""

    target: str
    address: str
    state: State
    rtt_s: float


class Pinged(Struct, tag=True, frozen=True):
    """A root measured how far away this leaf is: the cell it stands in, the round trip as it knows it now, its news."""

    source: str
    rtt_s: float
    news: News


class AddressChanged(Struct, tag=True, frozen=True):
    """An address began or ceased to answer."""

    target: str
    address: str
    up: bool


class Probed(Struct, tag=True, frozen=True):
    """A server was asked whether it is well."""

    target: str
    address: str
    result: Probe


class TurnAsked(Struct, tag=True, frozen=True):
    """There may be room for an exchange that waits."""


class ModelsLearned(Struct, tag=True, frozen=True):
    """A server said which models it serves."""

    target: str
    models: tuple[str, ...]


class TargetsChanged(Struct, tag=True, frozen=True):
    """The set of targets is now this one; open exchanges keep theirs until they end."""

    targets: tuple[TargetSettings, ...]


class EndpointsChanged(Struct, tag=True, frozen=True):
    """The configured endpoints are now these."""

    endpoints: tuple[EndpointSettings, ...]


class SettingsChanged(Struct, tag=True, frozen=True):
    """What is neither a target nor an endpoint is now so."""

    settings: TierSettings


class PolicySet(Struct, tag=True, frozen=True):
    """An operator switched an endpoint's policy; an empty one reverts to the configured policy."""

    endpoint: str
    policy: str


class AdminSet(Struct, tag=True, frozen=True):
    """An operator took an address out, or put it back; an empty address is the whole target."""

    target: str
    address: str
    state: AdminState


class Audited(Struct, tag=True, frozen=True):
    """The driver counted what is really open: the numbers of the exchanges it still serves."""

    open: tuple[int, ...]


class TimerFired(Struct, tag=True, frozen=True):
    """The time asked for with SetTimer has come."""


class Solved(Struct, tag=True, frozen=True):
    """A program that was asked for with SetTimer has been worked out."""

    endpoint: str
    solution: Solution


Event: TypeAlias = (
    Arrived
    | AttemptStarted
    | FirstByte
    | Ended
    | AttemptFailed
    | Stalled
    | ClientGone
    | Expired
    | StateReported
    | Pinged
    | AddressChanged
    | Probed
    | TurnAsked
    | ModelsLearned
    | TargetsChanged
    | EndpointsChanged
    | SettingsChanged
    | PolicySet
    | AdminSet
    | Audited
    | TimerFired
    | Solved
)
