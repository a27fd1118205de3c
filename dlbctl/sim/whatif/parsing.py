"""What the command line says of a fleet and of what is otherwise: `CELL=N`, `CELL@TIME` and the like, to structures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import TypeVar

from dlbctl.core.errors import UsageError, shortened
from dlbctl.core.names import listed
from dlbctl.engine.profile import load_profile
from dlbctl.fleet.regions import MOST_MS
from dlbctl.sim.contender import Contender
from dlbctl.sim.whatif.changes import Add, Change, Lose, Servers, Slow
from dlbctl.sim.whatif.fleet import CellSize, Told

# Beyond it a factor is a slip. Servers beyond that number take minutes to be set up.
MOST_TIMES = 1e4
MOST_SERVERS = 5_000

Key = TypeVar("Key", str, tuple[str, str])
Value = TypeVar("Value")


def parse_policies(texts: Iterable[str] | None) -> list[str]:
    """Policies to compare, each once. UsageError names those that there are."""
    policies = list(dict.fromkeys(listed(texts, "--policy")))
    for policy in policies:
        if Contender.parse(policy, option="--policy").capacity != "true":
            raise UsageError(f"--policy {policy}: a fleet says itself what its servers bear", hint="write mnlb alone")
    return policies


def parse_told(
    *,
    profile: str | None,
    time_factor: float | None,
    cells: Iterable[str] | None,
    one_way: Iterable[str] | None,
    weights: Iterable[str] | None,
    endpoint: str | None,
) -> Told:
    """What is said of the fleet as it is."""
    if profile is not None:
        load_profile(profile)
    if time_factor is not None:
        parse_factor(time_factor, "--time-factor")
    return Told(
        profile=profile,
        time_factor=time_factor,
        cells=_once((_sized(text, "--cell") for text in listed(cells, "--cell")), "--cell"),
        one_way_s=_once(map(_one_way, listed(one_way, "--one-way")), "--one-way"),
        weights=_once(
            (_number(text, "--weight", "SOURCE=W", _at_least_zero) for text in listed(weights, "--weight")), "--weight"
        ),
        endpoint=endpoint,
    )


def parse_changes(
    *,
    lose: Iterable[str] | None,
    slow: Iterable[str] | None,
    servers: Iterable[str] | None,
    add: Iterable[str] | None,
    told: Told,
) -> list[Change]:
    """What is otherwise."""
    changes: list[Change] = [Add(*_sized(text, "--add"), told) for text in listed(add, "--add")]
    for text in listed(servers, "--servers"):
        head, at_s = _timed(text, "--servers")
        cell, size = _sized(head, "--servers")
        if size.profile:
            raise UsageError(f"--servers {text}: further servers are like the others", hint="leave out :PROFILE")
        changes.append(Servers(cell, size.servers, at_s))
    for text in listed(slow, "--slow"):
        head, at_s = _timed(text, "--slow")
        changes.append(Slow(*_number(head, "--slow", "CELL=3", _factor), at_s))
    changes += [Lose(*_timed(text, "--lose")) for text in listed(lose, "--lose")]
    _refuse_contradictions(changes)
    return changes


def parse_factor(factor: float, option: str) -> float:
    """So many times as much of something. UsageError for one that nobody can mean."""
    return _factor(factor, f"{option} {factor:g}")


def _refuse_contradictions(changes: Sequence[Change]) -> None:
    """Two sizes of one cell, say, or a change of what is already gone."""
    for index, change in enumerate(changes):
        for other in changes[:index]:
            if other.cell == change.cell:
                _refuse_both(other, change)


def _refuse_both(one: Change, other: Change) -> None:
    """Of one cell. `other` is lost if one of them is."""
    if type(one) is type(other):
        raise UsageError(f"{one.cell}: the same is said of it twice")
    if isinstance(one, Add) and isinstance(other, Servers) and other.at_s is None:
        raise UsageError(f"{one}, and {other}: these are two numbers of servers", hint="give --add the one you mean")
    if isinstance(other, Lose) and (one.at_s or 0.0) >= (other.at_s or 0.0):
        raise UsageError(f"{one}, and {other}: nothing would be seen of the first", hint="leave one of the two out")


def _once(pairs: Iterable[tuple[Key, Value]], option: str) -> dict[Key, Value]:
    """What is said, by what it is said of: of each once."""
    said: dict[Key, Value] = {}
    for key, value in pairs:
        if key in said:
            name = key if isinstance(key, str) else ":".join(filter(None, key))
            raise UsageError(f"{option} {name}: is said twice")
        said[key] = value
    return said


def _timed(text: str, option: str) -> tuple[str, float | None]:
    """`WHAT` or `WHAT@SECONDS`."""
    head, at, time = text.rpartition("@")
    if not at:
        return text, None
    return head, _at_least_zero(_float(time.removesuffix("s"), f"{option} {text}"), f"{option} {text}")


def _sized(text: str, option: str) -> tuple[str, CellSize]:
    """`CELL=N` or `CELL=N:PROFILE`."""
    name, _, value = text.rpartition("=")
    count, colon, profile = value.partition(":")
    if not name or not count.isdecimal() or (colon and not profile):
        raise UsageError(f"{option} {text}: not understood", hint=f"as in {option} eu-frankfurt=4")
    count = count.lstrip("0")
    if not count:
        raise UsageError(f"{option} {text}: a cell has at least one server", hint=f"--lose {name} takes it away")
    if len(count) > len(str(MOST_SERVERS)) or int(count) > MOST_SERVERS:
        raise UsageError(f"{option} {shortened(text)}: a cell has {MOST_SERVERS} servers at most")
    if profile:
        load_profile(profile)
    return name, CellSize(int(count), profile)


def _one_way(text: str) -> tuple[tuple[str, str], float]:
    """`CELL=MS`, from every source, or `SOURCE:CELL=MS`."""
    name, ms = _number(text, "--one-way", "[SOURCE:]CELL=MS", _delay_ms)
    source, _, cell = name.rpartition(":")
    return (source, cell), ms / 1e3


def _number(text: str, option: str, form: str, check: Callable[[float, str], float]) -> tuple[str, float]:
    """`NAME=NUMBER`."""
    name, _, value = text.rpartition("=")
    if not name:
        raise UsageError(f"{option} {text}: not understood", hint=f"write it as {form}")
    return name, check(_float(value, f"{option} {text}"), f"{option} {text}")


def _float(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{where}: {text!r} is no number") from None


def _factor(value: float, where: str) -> float:
    if not 1.0 / MOST_TIMES <= value <= MOST_TIMES:
        raise UsageError(f"{where}: must be a number above 0, from {1.0 / MOST_TIMES:g} to {MOST_TIMES:g}")
    return value


def _delay_ms(value: float, where: str) -> float:
    if not 0.0 <= value <= MOST_MS:
        raise UsageError(f"{where}: is not from 0 to {MOST_MS:g} ms")
    return value


def _at_least_zero(value: float, where: str) -> float:
    if not (isfinite(value) and value >= 0.0):
        raise UsageError(f"{where}: cannot be negative")
    return value
