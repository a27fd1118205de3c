"""The event log: what a tier heard and answered, written down so that it can be run again (`core.offline`).

Opt-in; without it the plain `Tier` runs. The log holds endpoints, addresses, sizes, times, request ids and
hashes of sessions, never a request's text or headers.

It grows in parts: PATH is written to; when it is full it becomes PATH.1, and so on up to the number kept, then
the oldest goes. Every part says in its header which one it is. A tier's actions follow from all its events, so
only a log whose first part is still there can be run again; later parts alone can be read, not replayed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec

from dlbctl.core.errors import ConfigError
from dlbctl.core.events import (
    AddressChanged,
    AdminSet,
    AdminState,
    Arrival,
    Arrived,
    AttemptFailed,
    AttemptStarted,
    Audited,
    ClientGone,
    Drift,
    Ended,
    EndpointsChanged,
    Event,
    Expired,
    Failure,
    FirstByte,
    Forward,
    ModelsLearned,
    Pinged,
    PolicySet,
    Probe,
    Probed,
    Reject,
    RequestAction,
    SetTimer,
    SettingsChanged,
    Solved,
    Stalled,
    State,
    StateReported,
    TargetsChanged,
    TimerFired,
    Turn,
    TurnAsked,
    Usage,
    Wait,
)
from dlbctl.core.exchange import Exchange
from dlbctl.core.news import News
from dlbctl.core.offline import VERSION, Action, Entry, Header, outcome
from dlbctl.core.programs import Solution
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
from dlbctl.core.tier import Tier

PART_BYTES = 64 * 1024 * 1024
PARTS_KEPT = 3
FLUSH_S = 0.5
# A disk that is this far behind will not catch up.
BUFFER_BYTES = 32 * 1024 * 1024

Note = Callable[[float, Event, Action | None], None]

_LOG = logging.getLogger(__name__)


class EventLog:
    """The file. Entries wait in memory until the next flush, which a thread of its own writes.

    A disk that fails or falls behind ends the log, with a word in the process's own log: one with a hole in
    it could not be run again. ConfigError when the file cannot be made in the first place.
    """

    def __init__(
        self, path: Path, settings: TierSettings, boot: str, *, part_bytes: int = PART_BYTES, kept: int = PARTS_KEPT
    ) -> None:
        self.path = path
        self.ended = ""
        self._settings = settings
        self._boot = boot
        self._part_bytes = part_bytes
        self._kept = kept
        self._encoder = msgspec.json.Encoder()
        self._waiting = bytearray()
        self._part = 0
        try:
            self._file = self._begin()
        except OSError as error:
            raise ConfigError(f"event_log: {path}: cannot be written: {error.strerror or error}") from error
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="event-log")
        self._writing: Future[None] | None = None

    def __repr__(self) -> str:
        return f"<EventLog {self.path} part {self._part}, {self.ended or f'{len(self._waiting)} bytes waiting'}>"

    def note(self, at_s: float, event: Event, action: Action | None) -> None:
        """Write down an event and what the tier did about it."""
        if self.ended:
            return
        self._waiting += self._encoder.encode(Entry(at_s, event, outcome(action))) + b"\n"
        if len(self._waiting) > BUFFER_BYTES:
            self._end("the disk does not keep up")

    async def run(self) -> None:
        """Flush from time to time, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        """Have what is waiting written, unless the last flush is still being written."""
        if self._waiting and (self._writing is None or self._writing.done()):
            data, self._waiting = self._waiting, bytearray()
            self._writing = self._writer.submit(self._write, data)

    def close(self) -> None:
        """Write what is left."""
        self._writer.submit(self._write, self._waiting)
        self._writer.shutdown(wait=True)
        self.ended = self.ended or "closed"
        self._file.close()

    # -- in the thread -----------------------------------------------------------------------------------

    def _write(self, data: bytearray) -> None:
        if self.ended or not data:
            return
        try:
            if self._file.tell() > self._part_bytes:
                self._file.close()
                self._part += 1
                self._file = self._begin()
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self._end(error.strerror or str(error))

    def _begin(self) -> BinaryIO:
        """Make room and start a part with its header. Only its user may read it."""
        self._shift()
        file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        file.write(self._encoder.encode(Header(VERSION, self._part, self._boot, self._settings)) + b"\n")
        return file

    def _shift(self) -> None:
        """PATH becomes PATH.1, that PATH.2; the oldest goes. What an earlier run left is a part like any other."""
        if self.path.exists():
            for age in range(self._kept - 1, 1, -1):
                if (newer := self._aged(age - 1)).exists():
                    newer.replace(self._aged(age))
            self.path.replace(self._aged(1))

    def _aged(self, age: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{age}")

    def _end(self, why: str) -> None:
        self.ended = why
        self._waiting = bytearray()
        _LOG.error("the event log %s ends here: %s", self.path, why)


class RecordedTier(Tier):
    """A tier that has every event and its action noted (`EventLog.note`), except what its constructor does."""

    def __init__(self, settings: TierSettings, boot: str, note: Note) -> None:
        self._heard_s = 0.0
        self._to: Note | None = None
        super().__init__(settings, boot)
        self._to = note

    def _note(self, now_s: float, event: Event, action: Action | None = None) -> None:
        self._heard_s = now_s
        if self._to is not None:
            self._to(now_s, event, action)

    def arrived(self, now_s: float, arrival: Arrival) -> Forward | Wait | Reject:
        """See Tier."""
        event = Arrived(arrival)
        action = super().arrived(now_s, arrival)
        self._note(now_s, event, action)
        return action

    def attempt_started(self, now_s: float, exchange: Exchange) -> None:
        """See Tier."""
        super().attempt_started(now_s, exchange)
        self._note(now_s, AttemptStarted(exchange.number))

    def first_byte(self, now_s: float, exchange: Exchange, status: int) -> None:
        """See Tier."""
        super().first_byte(now_s, exchange, status)
        self._note(now_s, FirstByte(exchange.number, status))

    def ended(self, now_s: float, exchange: Exchange, status: int, usage: Usage | None, stalled_s: float) -> None:
        """See Tier."""
        super().ended(now_s, exchange, status, usage, stalled_s)
        self._note(now_s, Ended(exchange.number, status, usage, stalled_s))

    def attempt_failed(
        self,
        now_s: float,
        exchange: Exchange,
        failure: Failure,
        written: bool,
        answered: bool,
        reused: bool,
        retry_after_s: float,
    ) -> RequestAction:
        """See Tier."""
        action = super().attempt_failed(now_s, exchange, failure, written, answered, reused, retry_after_s)
        event = AttemptFailed(exchange.number, failure, written, answered, reused, retry_after_s)
        self._note(now_s, event, action)
        return action

    def stalled(self, now_s: float, exchange: Exchange) -> None:
        """See Tier."""
        super().stalled(now_s, exchange)
        self._note(now_s, Stalled(exchange.number))

    def client_gone(self, now_s: float, exchange: Exchange) -> None:
        """See Tier."""
        super().client_gone(now_s, exchange)
        self._note(now_s, ClientGone(exchange.number))

    def expired(self, now_s: float, exchange: Exchange, total: bool) -> RequestAction:
        """See Tier."""
        action = super().expired(now_s, exchange, total)
        self._note(now_s, Expired(exchange.number, total), action)
        return action

    def state_reported(self, now_s: float, target: str, address: str, state: State, rtt_s: float) -> None:
        """See Tier."""
        super().state_reported(now_s, target, address, state, rtt_s)
        self._note(now_s, StateReported(target, address, state, rtt_s))

    def pinged(self, now_s: float, source: str, rtt_s: float, news: News) -> None:
        """See Tier."""
        super().pinged(now_s, source, rtt_s, news)
        self._note(now_s, Pinged(source, rtt_s, news))

    def address_changed(self, now_s: float, target: str, address: str, up: bool) -> None:
        """See Tier."""
        super().address_changed(now_s, target, address, up)
        self._note(now_s, AddressChanged(target, address, up))

    def probed(self, now_s: float, target: str, address: str, result: Probe) -> None:
        """See Tier."""
        super().probed(now_s, target, address, result)
        self._note(now_s, Probed(target, address, result))

    def turn(self, now_s: float) -> Turn | None:
        """See Tier."""
        action = super().turn(now_s)
        self._note(now_s, TurnAsked(), action)
        return action

    def models_learned(self, now_s: float, target: str, models: tuple[str, ...]) -> None:
        """See Tier."""
        super().models_learned(now_s, target, models)
        self._note(now_s, ModelsLearned(target, models))

    def targets_changed(self, targets: Iterable[TargetSettings]) -> None:
        """See Tier. It has no time of its own and needs none: it is noted at that of the event before it."""
        wanted = tuple(targets)
        super().targets_changed(wanted)
        self._note(self._heard_s, TargetsChanged(wanted))

    def endpoints_changed(self, endpoints: Iterable[EndpointSettings]) -> None:
        """See Tier; noted like `targets_changed`."""
        wanted = tuple(endpoints)
        super().endpoints_changed(wanted)
        self._note(self._heard_s, EndpointsChanged(wanted))

    def settings_changed(self, settings: TierSettings) -> None:
        """See Tier; noted like `targets_changed`."""
        super().settings_changed(settings)
        self._note(self._heard_s, SettingsChanged(settings))

    def policy_set(self, now_s: float, endpoint: str, policy: str) -> None:
        """See Tier."""
        super().policy_set(now_s, endpoint, policy)
        self._note(now_s, PolicySet(endpoint, policy))

    def admin_set(self, now_s: float, target: str, address: str, state: AdminState) -> None:
        """See Tier."""
        super().admin_set(now_s, target, address, state)
        self._note(now_s, AdminSet(target, address, state))

    def audited(self, now_s: float, open_: tuple[int, ...]) -> Drift:
        """See Tier. Noted only when it changed something: most audits find nothing."""
        drift = super().audited(now_s, open_)
        if drift.leaked or drift.counts:
            self._note(now_s, Audited(open_))
        return drift

    def timer_fired(self, now_s: float) -> SetTimer:
        """See Tier."""
        action = super().timer_fired(now_s)
        self._note(now_s, TimerFired(), action)
        return action

    def solved(self, now_s: float, endpoint: str, solution: Solution) -> None:
        """See Tier."""
        super().solved(now_s, endpoint, solution)
        self._note(now_s, Solved(endpoint, solution))


def tier_of(settings: TierSettings, boot: str, path: str) -> tuple[Tier, EventLog | None]:
    """A tier, and its event log where a path asks for one. ConfigError when that cannot be made."""
    if not path:
        return Tier(settings, boot), None
    log = EventLog(Path(path), settings, boot)
    return RecordedTier(settings, boot, log.note), log
