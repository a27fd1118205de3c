"""A recorded event log, run again without clock or network: the law that a tier is a function of its events.

A log is lines of JSON: a `Header`, then one `Entry` for each event, in the order the tier heard them. It can
grow in parts, each with a header of its own; what a tier did follows from all its events, so a replay takes
the parts in order from the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from dlbctl.core.errors import ConfigError
from dlbctl.core.events import (
    AddressChanged,
    AdminSet,
    Arrived,
    AttemptFailed,
    AttemptStarted,
    Audited,
    Cancel,
    ClientGone,
    Ended,
    EndpointsChanged,
    Event,
    Expired,
    Explore,
    FirstByte,
    Forward,
    ModelsLearned,
    Pinged,
    PolicySet,
    Probed,
    Reject,
    RequestAction,
    SetTimer,
    SettingsChanged,
    Solve,
    Solved,
    Stalled,
    StateReported,
    TargetsChanged,
    TimerFired,
    Turn,
    TurnAsked,
    Wait,
)
from dlbctl.core.settings import TierSettings
from dlbctl.core.tier import Tier

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange

VERSION = 4
MISMATCHES_KEPT = 10

Action: TypeAlias = RequestAction | Turn | SetTimer


class Forwarded(Struct, tag="forward", frozen=True):
    """The exchange was sent to an address."""

    exchange: int
    address: str
    rule: str
    fresh: bool


class Rejected(Struct, tag="reject", frozen=True):
    """The client was answered with an error of the tier's own."""

    status: int
    code: str


class Cancelled(Struct, tag="cancel", frozen=True):
    """The answer was cut short."""

    code: str


class Waiting(Struct, tag="wait", frozen=True):
    """The exchange was put into a queue."""

    exchange: int
    until_s: float


class Turned(Struct, tag="turn", frozen=True):
    """An exchange's waiting was over."""

    exchange: int
    action: Forwarded | Rejected


class TimerSet(Struct, tag="timer", frozen=True, omit_defaults=True):
    """The tier asked to be called at this time, and for what was to be solved and tried."""

    at_s: float
    solve: tuple[Solve, ...] = ()
    explore: tuple[Explore, ...] = ()


Outcome: TypeAlias = Forwarded | Waiting | Rejected | Cancelled | Turned | TimerSet


class Header(Struct, tag="header", tag_field="line", frozen=True):
    """What the tier was made of. part: 0 for the beginning of a log, then counted up."""

    v: int
    part: int
    boot: str
    settings: TierSettings


class Entry(Struct, tag="event", tag_field="line", frozen=True, omit_defaults=True):
    """One event and what the tier answered, at a time on the recorded process's clock."""

    at_s: float
    event: Event
    action: Outcome | None = None


class Mismatch(Struct, frozen=True):
    """An event that was answered differently: line of the log, what was recorded, what came of it now."""

    line: int
    event: Event
    recorded: Outcome | None
    replayed: Outcome | None


class Comparison(Struct):
    """How a replay went.

    events: those applied. actions: those compared. mismatches: the first few; the replay ends with the last of
    them. skipped: events that, after a first mismatch, cannot happen in the replay.
    """

    events: int = 0
    actions: int = 0
    skipped: int = 0
    mismatches: list[Mismatch] = []

    @property
    def same(self) -> bool:
        """Whether every action was the recorded one."""
        return not self.mismatches


def outcome(action: Action | None) -> Outcome | None:
    """What of an action is recorded and compared."""
    match action:
        case None:
            return None
        case Forward() | Reject():
            return _settled(action)
        case Wait():
            return Waiting(action.exchange.number, action.until_s)
        case Turn():
            return Turned(action.exchange.number, _settled(action.action))
        case Cancel():
            return Cancelled(action.code)
        case SetTimer():
            return TimerSet(action.at_s, action.solve, action.explore)
        case _:
            assert_never(action)


def _settled(action: Forward | Reject) -> Forwarded | Rejected:
    if isinstance(action, Forward):
        return Forwarded(action.exchange.number, action.address, action.rule, action.fresh)
    return Rejected(action.status, action.code)


def handle(tier: Tier, now_s: float, event: Event) -> Action | None:
    """Tell a tier of an event. KeyError (LookupError) when it is about an exchange that is not open."""
    match event:
        case AttemptStarted() | FirstByte() | Ended() | AttemptFailed() | Stalled() | ClientGone() | Expired():
            return _handle_request(tier, now_s, event, tier.exchanges[event.exchange])
        case Arrived():
            return tier.arrived(now_s, event.arrival)
        case StateReported():
            tier.state_reported(now_s, event.target, event.address, event.state, event.rtt_s)
        case Pinged():
            tier.pinged(now_s, event.source, event.rtt_s, event.news)
        case AddressChanged():
            tier.address_changed(now_s, event.target, event.address, event.up)
        case Probed():
            tier.probed(now_s, event.target, event.address, event.result)
        case TurnAsked():
            return tier.turn(now_s)
        case ModelsLearned():
            tier.models_learned(now_s, event.target, event.models)
        case TargetsChanged():
            tier.targets_changed(event.targets)
        case EndpointsChanged():
            tier.endpoints_changed(event.endpoints)
        case SettingsChanged():
            tier.settings_changed(event.settings)
        case PolicySet():
            tier.policy_set(now_s, event.endpoint, event.policy)
        case AdminSet():
            tier.admin_set(now_s, event.target, event.address, event.state)
        case Audited():
            tier.audited(now_s, event.open)
        case TimerFired():
            return tier.timer_fired(now_s)
        case Solved():
            tier.solved(now_s, event.endpoint, event.solution)
        case _:
            assert_never(event)
    return None


RequestEvent: TypeAlias = AttemptStarted | FirstByte | Ended | AttemptFailed | Stalled | ClientGone | Expired


def _handle_request(tier: Tier, now_s: float, event: RequestEvent, exchange: Exchange) -> Action | None:
    match event:
        case AttemptStarted():
            tier.attempt_started(now_s, exchange)
        case FirstByte():
            tier.first_byte(now_s, exchange, event.status)
        case Ended():
            tier.ended(now_s, exchange, event.status, event.usage, event.stalled_s)
        case AttemptFailed():
            return tier.attempt_failed(
                now_s, exchange, event.failure, event.written, event.answered, event.reused, event.retry_after_s
            )
        case Stalled():
            tier.stalled(now_s, exchange)
        case ClientGone():
            tier.client_gone(now_s, exchange)
        case Expired():
            return tier.expired(now_s, exchange, event.total)
        case _:
            assert_never(event)
    return None


def replay(lines: Iterable[bytes]) -> Comparison:
    """Run a log again and compare the actions. lines: of all its parts, with their line ends.

    ConfigError names the line that cannot be used. A last line without its end, as a killed process leaves
    it, is left out.
    """
    parsed = _parsed(lines)
    first = next(parsed, None)
    if first is None or not isinstance(first[1], Header):
        raise ConfigError("event log, line 1: there is no header", hint="an event log begins with a header line")
    header = first[1]
    _check_part(1, header, boot=header.boot, part=0)
    comparison = Comparison()
    run = _Run(Tier(header.settings, header.boot), comparison)
    parts = 1
    for number, line in parsed:
        if isinstance(line, Header):
            _check_part(number, line, boot=header.boot, part=parts)
            parts += 1
        else:
            run.apply(number, line)
        if len(comparison.mismatches) == MISMATCHES_KEPT:
            break
    return comparison


class _Run:
    """The tier of a replay, and what has been found so far."""

    def __init__(self, tier: Tier, comparison: Comparison) -> None:
        self._tier = tier
        self._comparison = comparison

    def apply(self, number: int, entry: Entry) -> None:
        """Apply one event and compare."""
        found = self._comparison
        exchange = getattr(entry.event, "exchange", None)
        if exchange is not None and exchange not in self._tier.exchanges:
            if found.same:
                raise ConfigError(f"event log, line {number}: exchange {exchange} is not open")
            found.skipped += 1
            return
        try:
            replayed = outcome(handle(self._tier, entry.at_s, entry.event))
        except (AssertionError, ConfigError) as error:
            if not found.same:
                found.skipped += 1  # it follows from what was not done here
                return
            raise ConfigError(f"event log, line {number}: the event cannot follow those before it: {error}") from error
        found.events += 1
        found.actions += replayed is not None or entry.action is not None
        if replayed != entry.action:
            found.mismatches.append(Mismatch(number, entry.event, entry.action, replayed))


def _check_part(number: int, header: Header, *, boot: str, part: int) -> None:
    if header.v != VERSION:
        raise ConfigError(f"event log, line {number}: version {header.v}, and this is dlbctl for version {VERSION}")
    if header.boot != boot or header.part != part:
        raise ConfigError(
            f"event log, line {number}: part {header.part} of {header.boot} where part {part} of {boot} is due",
            hint="give all the parts of one log in order, from its first; a log whose first part is gone cannot be run",
        )


def _parsed(lines: Iterable[bytes]) -> Iterator[tuple[int, Header | Entry]]:
    decoder = msgspec.json.Decoder(Header | Entry)
    for number, line in enumerate(lines, 1):
        try:
            yield number, decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise ConfigError(f"event log, line {number}: cannot be read: {error}") from error
