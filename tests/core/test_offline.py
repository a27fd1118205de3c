"""Replaying a log: what is compared, what is found, and how a file that cannot be used is told."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.errors import ConfigError
from dlbctl.core.events import Arrival, Event, Failure, Forward, Reject
from dlbctl.core.offline import (
    MISMATCHES_KEPT,
    VERSION,
    Action,
    Comparison,
    Entry,
    Forwarded,
    Header,
    Rejected,
    outcome,
    replay,
)
from dlbctl.core.settings import EndpointSettings, Limits, QueueSettings, TargetSettings, TierSettings
from dlbctl.router.eventlog import RecordedTier

BOOT = "b00t"
NO_QUEUE = QueueSettings(size=0)


def settings_of(policy: str = "power-of-d/rif", limit: int = 0, seed: int = 9) -> TierSettings:
    targets = tuple(TargetSettings(f"s{n}", (f"http://s{n}:1",), ("m",)) for n in range(4))
    return TierSettings(
        "leaf", "here", targets, (EndpointSettings("m", policy, Limits(limit)),), seed=seed, queue=NO_QUEUE
    )


def header(settings: TierSettings, *, part: int = 0, boot: str = BOOT, v: int = VERSION) -> bytes:
    return msgspec.json.encode(Header(v, part, boot, settings)) + b"\n"


def recorded(settings: TierSettings, *, requests: int = 40) -> list[bytes]:
    """The log of a leaf that is up and gets requests, each of which ends in one of a few ways."""
    lines = [header(settings)]

    def note(at_s: float, event: Event, action: Action | None) -> None:
        lines.append(msgspec.json.encode(Entry(at_s, event, outcome(action))) + b"\n")

    tier = RecordedTier(settings, BOOT, note)
    for target in settings.targets:
        tier.address_changed(1.0, target.name, target.addresses[0], True)
    for number in range(requests):
        now_s = 2.0 + number / 7.0
        action = tier.arrived(now_s, Arrival(f"r{number}", "m", 100))
        if isinstance(action, Forward):
            tier.attempt_started(now_s, action.exchange)
            if number % 3 == 0:
                tier.attempt_failed(now_s, action.exchange, Failure.CLOSED, True, False, True, 0.0)
            elif number % 3 == 1:
                tier.first_byte(now_s, action.exchange, 200)
                tier.ended(now_s + 0.1, action.exchange, 200, None, 0.0)
        tier.timer_fired(now_s + 0.1)
    return lines


def test_a_log_replays_to_the_same_actions() -> None:
    lines = recorded(settings_of())
    comparison = replay(lines)
    assert comparison.same
    assert comparison.events == len(lines) - 1
    assert comparison.actions == 40 + 14 + 40  # arrivals, fresh connections, timers


def test_what_is_learned_in_rounds_is_learned_again() -> None:
    """Rounds are the timer's events: nothing else of them is recorded, and without them another server is drawn."""
    lines = recorded(settings_of("flow/work"), requests=200)
    comparison = replay(lines)
    assert comparison.same
    assert comparison.events == len(lines) - 1
    without = [line for line in lines if b"TimerFired" not in line]
    assert len(without) == len(lines) - 200
    assert not replay(without).same


def test_another_seed_is_noticed_and_the_first_mismatch_named() -> None:
    lines = recorded(settings_of())
    comparison = replay([header(settings_of(seed=10)), *lines[1:]])
    assert not comparison.same
    first = comparison.mismatches[0]
    assert isinstance(first.recorded, Forwarded)
    assert isinstance(first.replayed, Forwarded)
    assert first.recorded.address != first.replayed.address
    assert b'"arrival"' in lines[first.line - 1]
    assert len(comparison.mismatches) == MISMATCHES_KEPT


def test_a_tier_that_would_refuse_skips_what_followed() -> None:
    lines = recorded(settings_of())
    comparison = replay([header(settings_of(limit=1)), *lines[1:]])
    assert comparison.mismatches[0].replayed == Rejected(503, "endpoint_full")
    assert comparison.skipped > 0


def test_a_last_line_cut_by_a_killed_process_is_left_out() -> None:
    lines = recorded(settings_of())
    comparison = replay([*lines[:-1], lines[-1][:-9]])
    assert comparison.same
    assert comparison.events == len(lines) - 2


def test_parts_in_order_are_one_log() -> None:
    settings = settings_of()
    lines = recorded(settings)
    whole = [*lines[:30], header(settings, part=1), *lines[30:60], header(settings, part=2), *lines[60:]]
    assert replay(whole) == replay(lines)


def changed(number: int, line: bytes) -> list[bytes]:
    """The good log with one line (from 1) replaced."""
    lines = recorded(settings_of())
    lines[number - 1] = line
    return lines


ENTRY = b'{"line":"event","at_s":1,"event":'


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "line 1: there is no header"),
        (recorded(settings_of())[1:], "line 1: there is no header"),
        ([header(settings_of(), v=99)], "line 1: version 99"),
        ([header(settings_of(), part=2)], "line 1: part 2 of b00t where part 0"),
        (changed(5, header(settings_of(), part=2)), "line 5: part 2 of b00t where part 1"),
        (changed(5, header(settings_of(), part=1, boot="other")), "line 5: part 1 of other where part 1 of b00t"),
        (changed(3, b"{\n"), "line 3: cannot be read"),
        (changed(3, b"\xff\xfe\n"), "line 3: cannot be read"),
        (changed(3, b"\n"), "line 3: cannot be read"),
        (changed(3, ENTRY + b'{"type":"Unknown"}}\n'), "line 3: cannot be read"),
        (changed(3, ENTRY + b'{"type":"FirstByte","exchange":"one"}}\n'), "line 3: cannot be read"),
        (
            changed(3, ENTRY + b'{"type":"FirstByte","exchange":700,"status":200}}\n'),
            "line 3: exchange 700 is not open",
        ),
        (changed(7, ENTRY + b'{"type":"Ended","exchange":1,"status":200,"usage":null,"stalled_s":0}}\n'), "line "),
        (changed(3, ENTRY + b'{"type":"PolicySet","endpoint":"m","policy":"none"}}\n'), "line 3: .*'none'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(lines: list[bytes], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replay(lines)


def test_an_event_that_cannot_follow_is_told_by_its_line() -> None:
    lines = recorded(settings_of(), requests=2)
    started = next(number for number, line in enumerate(lines) if b"AttemptStarted" in line)
    first_byte = ENTRY + b'{"type":"FirstByte","exchange":1,"status":200}}\n'
    with pytest.raises(ConfigError, match=rf"line {started + 3}: the event cannot follow"):
        replay([*lines[: started + 1], first_byte, first_byte])


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(0, 120), st.integers(0, 300), st.binary(max_size=4))
def test_damage_anywhere_is_a_config_error_or_a_comparison(line: int, place: int, bytes_: bytes) -> None:
    lines = recorded(settings_of())
    damaged = lines[line % len(lines)]
    place %= len(damaged)
    lines[line % len(lines)] = damaged[:place] + bytes_ + damaged[place + len(bytes_) :]
    with contextlib.suppress(ConfigError):
        assert isinstance(replay(lines), Comparison)


def test_what_is_kept_of_an_action() -> None:
    assert outcome(None) is None
    assert outcome(Reject(503, "full", "words that may change", 1)) == Rejected(503, "full")
