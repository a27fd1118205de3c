"""What the command line says of a fleet and of what is otherwise: `CELL=N`, `CELL@TIME` and the like, to structures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite

from dlbctl.core.errors import ConfigError, UsageError
from dlbctl.core.policy import Policy
from dlbctl.engine.profile import load_profile
from dlbctl.sim.whatif.changes import Add, Change, Lose, Servers, Slow
from dlbctl.sim.whatif.fleet import CellSize, Told

# More than any cell has, and what a simulation of a minute bears.
MOST_SERVERS = 10_000
MOST_SLOWDOWN = 1e6


def parts(texts: Iterable[str] | None) -> list[str]:
    """The values of an option that may be repeated and have several with commas."""
    return [part.strip() for text in texts or () for part in text.split(",") if part.strip()]


def parse_policies(texts: Iterable[str] | None) -> list[str]:
    """Policies to compare, each once. UsageError names those that there are."""
    policies = list(dict.fromkeys(parts(texts)))
    try:
        for policy in policies:
            Policy.parse(policy, where="--policy")
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint) from error
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
    if time_factor is not None and not 0.0 < time_factor < float("inf"):
        raise UsageError(f"--time-factor {time_factor:g}: must be a number above 0")
    return Told(
        profile=profile,
        time_factor=time_factor,
        cells=dict(_sized(text, "--cell") for text in parts(cells)),
        one_way_s=dict(map(_one_way, parts(one_way))),
        weights=dict(_number(text, "--weight", "SOURCE=W", _at_least_zero) for text in parts(weights)),
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
    changes: list[Change] = [Add(*_sized(text, "--add"), told) for text in parts(add)]
    for text in parts(servers):
        head, at_s = _timed(text, "--servers")
        cell, size = _sized(head, "--servers")
        if size.profile:
            raise UsageError(f"--servers {text}: further servers are like the others", hint="leave out :PROFILE")
        changes.append(Servers(cell, size.servers, at_s))
    for text in parts(slow):
        head, at_s = _timed(text, "--slow")
        changes.append(Slow(*_number(head, "--slow", "CELL=3", _slowdown), at_s))
    changes += [Lose(*_timed(text, "--lose")) for text in parts(lose)]
    _refuse_repeated(changes)
    return changes


def parse_demand(factor: float) -> float:
    """How many times as many requests a second."""
    return _above_zero(factor, f"--demand {factor:g}")


def _refuse_repeated(changes: Sequence[Change]) -> None:
    """Two lines on one thing would contradict each other."""
    for index, change in enumerate(changes):
        if any(type(other) is type(change) and other.cell == change.cell for other in changes[:index]):
            raise UsageError(f"{change.cell}: the same is said of it twice")


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
    if int(count) < 1:
        raise UsageError(f"{option} {text}: a cell has at least one server", hint=f"--lose {name} takes it away")
    if int(count) > MOST_SERVERS:
        raise UsageError(f"{option} {text}: more than {MOST_SERVERS} servers are not simulated")
    if profile:
        load_profile(profile)
    return name, CellSize(int(count), profile)


def _one_way(text: str) -> tuple[tuple[str, str], float]:
    """`CELL=MS`, from every source, or `SOURCE:CELL=MS`."""
    name, ms = _number(text, "--one-way", "[SOURCE:]CELL=MS", _at_least_zero)
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


def _above_zero(value: float, where: str) -> float:
    if not (isfinite(value) and value > 0.0):
        raise UsageError(f"{where}: must be a number above 0")
    return value


def _slowdown(value: float, where: str) -> float:
    if not _above_zero(value, where) <= MOST_SLOWDOWN:
        raise UsageError(f"{where}: more than {MOST_SLOWDOWN:g} times slower is not simulated", hint="--lose the cell")
    return value


def _at_least_zero(value: float, where: str) -> float:
    if not (isfinite(value) and value >= 0.0):
        raise UsageError(f"{where}: cannot be negative")
    return value
