"""Finds the engine's token counts at the end of an answer, be it JSON or a stream of events, undecoded.

Bytes are looked at one by one where an expression would do: compiled, that is a tenth of its work.
"""

from __future__ import annotations

from typing import Final

from dlbctl.core.events import Usage

# The last bytes of an answer that are looked at: a usage object and what engines put after it.
TAIL_BYTES: Final = 2048

# Text cannot be mistaken for it: inside a JSON string the closing quote would be escaped.
_USAGE: Final = b'"usage"'
# OpenAI's two APIs have their own names for the same counts.
_PROMPT: Final = (b'"prompt_tokens"', b'"input_tokens"')
_COMPLETION: Final = (b'"completion_tokens"', b'"output_tokens"')
_CACHED: Final = (b'"cached_tokens"',)
# No count has more digits; a server's nonsense must not become a number of any size.
_MAX_DIGITS: Final = 12
_AFTER_NUMBER: Final = b",}] \t\r\n."

_SPACE: Final = 0x20
_COLON: Final = 0x3A
_BRACE: Final = 0x7B
_ZERO: Final = 0x30
_NINE: Final = 0x39


class Tail:
    """The last bytes of an answer, as the pieces they came in: to join them for each would copy kilobytes an event."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Tail of {self._bytes} bytes>"

    def add(self, piece: bytes) -> None:
        """More of the answer."""
        self._pieces.append(piece if len(piece) <= TAIL_BYTES else piece[-TAIL_BYTES:])
        self._bytes += len(self._pieces[-1])
        if self._bytes > 2 * TAIL_BYTES:
            self._pieces = [self.read()]
            self._bytes = TAIL_BYTES

    def read(self) -> bytes:
        """The last bytes in one."""
        return b"".join(self._pieces)[-TAIL_BYTES:]


def find_usage(tail: bytes) -> Usage | None:
    """The token counts in the last bytes of an answer; None when the engine gave none."""
    start = tail.rfind(_USAGE)
    while start >= 0 and not _is_object(tail, start + len(_USAGE)):
        start = tail.rfind(_USAGE, 0, start)  # the last one counts; some servers add a `null` after it
    if start < 0:
        return None
    prompt = _count(tail, start, _PROMPT)
    if prompt < 0:
        return None
    return Usage(prompt, max(_count(tail, start, _COMPLETION), 0), max(_count(tail, start, _CACHED), 0))


def _count(tail: bytes, start: int, names: tuple[bytes, ...]) -> int:
    """The number under the first of the names that has one; -1 when none has."""
    for name in names:
        at = tail.find(name, start)
        if at >= 0 and (number := _number(tail, _value(tail, at + len(name)))) >= 0:
            return number
    return -1


def _is_object(tail: bytes, at: int) -> bool:
    """Whether the key that ends here has an object for its value."""
    at = _value(tail, at)
    return at < len(tail) and tail[at] == _BRACE


def _value(tail: bytes, at: int) -> int:
    """Where the value of the key that ends here begins; the end of the tail when it is no key."""
    at = _skip_space(tail, at)
    return _skip_space(tail, at + 1) if at < len(tail) and tail[at] == _COLON else len(tail)


def _skip_space(tail: bytes, at: int) -> int:
    while at < len(tail) and tail[at] <= _SPACE:
        at += 1
    return at


def _number(tail: bytes, at: int) -> int:
    """The count that stands here, -1 for anything else."""
    number, end = 0, at
    while end < len(tail) and _ZERO <= tail[end] <= _NINE:
        number = 10 * number + tail[end] - _ZERO
        end += 1
        if end - at > _MAX_DIGITS:
            return -1
    ended = end == len(tail) or tail[end] in _AFTER_NUMBER
    return number if end > at and ended else -1
