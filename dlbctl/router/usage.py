"""Finds the engine's token counts at the end of an answer, be it JSON or a stream of events, undecoded."""

from __future__ import annotations

import re

from dlbctl.core.events import Usage

# The last bytes of an answer that are kept: a usage object and what engines put after it.
TAIL_BYTES = 2048

# Text cannot be mistaken for it: inside a JSON string the closing quote would be escaped.
_USAGE = b'"usage"'
_OBJECT = re.compile(rb"\s*:\s*\{")
# OpenAI's two APIs have their own names for the same counts.
_PROMPT = (b'"prompt_tokens"', b'"input_tokens"')
_COMPLETION = (b'"completion_tokens"', b'"output_tokens"')
_CACHED = (b'"cached_tokens"',)
# No count has more digits; a server's nonsense must not become a number of any size.
_NUMBER = re.compile(rb"\s*:\s*(\d{1,12})\b")


def find_usage(tail: bytes) -> Usage | None:
    """The token counts in the last bytes of an answer; None when the engine gave none."""
    start = tail.rfind(_USAGE)
    while start >= 0 and not _OBJECT.match(tail, start + len(_USAGE)):
        start = tail.rfind(_USAGE, 0, start)  # the last one counts; some servers add a `null` after it
    if start < 0:
        return None
    prompt = _count(tail, start, _PROMPT)
    if prompt is None:
        return None
    return Usage(prompt, _count(tail, start, _COMPLETION) or 0, _count(tail, start, _CACHED) or 0)


def _count(tail: bytes, start: int, names: tuple[bytes, ...]) -> int | None:
    # Searching for plain bytes and matching once is a fifth of the work of searching with an expression.
    for name in names:
        at = tail.find(name, start)
        if at >= 0 and (number := _NUMBER.match(tail, at + len(name))):
            return int(number[1])
    return None
