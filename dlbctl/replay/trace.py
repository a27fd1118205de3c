"""Reading a trace: Mooncake-format JSON lines into rows, and what had to be left out.

A bad row in a good trace is left out and counted with its line number; a file that is no trace is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec
import xxhash

from dlbctl.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BLOCK_TOKENS = 512
_NAMED_LINES = 5
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FORMAT_HINT = (
    "a trace is JSON lines with timestamp (ms), input_length, output_length and hash_ids; "
    "`--block-size` says how many tokens a hash id stands for"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace. timestamp_s counts from the trace's first usable row."""

    line: int
    timestamp_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str
    model: str | None = None


@dataclass(slots=True)
class LeftOut:
    """Rows that are not sent, by reason: how many, and the first few lines with what was wrong there."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, line: int, detail: str = "") -> None:
        """Count one row out."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.examples.setdefault(reason, [])
        if len(named) < _NAMED_LINES:
            named.append(f"line {line}: {detail}" if detail else f"line {line}")

    @property
    def total(self) -> int:
        """Rows left out for any reason."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Trace:
    """The usable rows of a file in order of time, and the rest. `rows + left_out.total == total`."""

    rows: tuple[Row, ...]
    left_out: LeftOut
    total: int


class _Line(msgspec.Struct):
    timestamp: float
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=1)]
    hash_ids: list[int]
    model: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    session_id: str | int | None = None


class _BadRowError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


_DECODE_LINE = msgspec.json.Decoder(_Line).decode


def session_key(block_ids: Iterable[int], session_id: str | int | None = None) -> str:
    """A session's name on the wire: 16 hex digits, the same on every machine.

    Without an id of its own a row belongs to its chain of blocks up to the second: the first block alone
    is one system prompt for whole traces, and would make everything one session.
    """
    chain = ",".join(map(str, list(block_ids)[:2]))
    name = f"blocks:{chain}" if session_id is None else f"id:{session_id}"
    return xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass"))


def read_trace(path: Path, *, block_tokens: int = BLOCK_TOKENS) -> Trace:
    """Read the trace at `path`.

    Raises ConfigError, naming path and line, where the file cannot be read, is no JSON in its first line,
    has no usable row, or more bad rows than good ones.
    """
    try:
        with path.open("rb") as lines:
            return parse_trace(lines, name=str(path), block_tokens=block_tokens)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the trace: {error.strerror}", hint=_FORMAT_HINT) from error


def parse_trace(lines: Iterable[bytes], *, name: str, block_tokens: int = BLOCK_TOKENS) -> Trace:
    """Parse a trace's lines; blank ones are no rows. `name` is for messages. Raises as `read_trace` does."""
    rows: list[Row] = []
    left_out = LeftOut()
    first_ms = last_ms = 0.0
    total = 0
    for number, text in _numbered(lines):
        total += 1
        try:
            line = _decode(text, block_tokens)
            first_ms = line.timestamp if not rows else first_ms
            if rows and line.timestamp < last_ms:
                raise _BadRowError("decreasing-timestamp", f"{line.timestamp:.12g} ms after {last_ms:.12g} ms")
        except _BadRowError as bad:
            if total == 1 and bad.reason == "not-json":
                _refuse(f"{name}:{number}: not a trace: the first line is {bad.detail}", bad)
            left_out.add(bad.reason, number, bad.detail)
            continue
        last_ms = line.timestamp
        rows.append(_row(number, line, (line.timestamp - first_ms) / 1000.0))
    _require_usable(name, rows, left_out, total)
    return Trace(tuple(rows), left_out, total)


def _numbered(lines: Iterable[bytes]) -> Iterable[tuple[int, bytes]]:
    for number, raw in enumerate(lines, start=1):
        text = (raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw).strip()
        if text:
            yield number, text


def _decode(text: bytes, block_tokens: int) -> _Line:
    try:
        line = _DECODE_LINE(text)
    except msgspec.ValidationError as error:
        raise _BadRowError("bad-fields", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _BadRowError("not-json", f"not JSON ({error})") from None
    _check(line, block_tokens)
    return line


def _check(line: _Line, block_tokens: int) -> None:
    if not math.isfinite(line.timestamp) or line.timestamp < 0:
        raise _BadRowError("negative-timestamp", f"timestamp {line.timestamp}")
    blocks = -(-line.input_length // block_tokens)
    if len(line.hash_ids) != blocks:
        detail = f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens, not {blocks}"
        raise _BadRowError("hash-ids-mismatch", detail)


def _row(number: int, line: _Line, timestamp_s: float) -> Row:
    return Row(
        line=number,
        timestamp_s=timestamp_s,
        input_tokens=line.input_length,
        output_tokens=line.output_length,
        block_ids=tuple(line.hash_ids),
        session=session_key(line.hash_ids, line.session_id),
        model=line.model,
    )


def _require_usable(name: str, rows: list[Row], left_out: LeftOut, total: int) -> None:
    if total == 0:
        _refuse(f"{name}:1: the trace is empty")
    if not rows or left_out.total > len(rows):
        first = next(iter(left_out.examples.items()))
        _refuse(f"{name}: {left_out.total} of {total} rows are unusable, first {first[1][0]} ({first[0]})")


def _refuse(message: str, cause: Exception | None = None) -> None:
    raise ConfigError(message, hint=_FORMAT_HINT) from cause
