"""Finds the engine's token counts at the end of an answer, be it JSON or a stream of events, undecoded."""

from __future__ import annotations

import re

from dlbctl.core.events import Usage

# The last bytes of an answer that are kept: a usage object and what engines put after it.
TAIL_BYTES = 2048

# Text cannot be mistaken for it: inside a JSON string the closing quote would be escaped.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
# No count has more digits; a server's nonsense must not become a number of any size.
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})\b')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})\b')
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,12})\b')


def longer_tail(tail: bytes, piece: bytes) -> bytes:
    """The last TAIL_BYTES of what has passed so far."""
    return (tail + piece)[-TAIL_BYTES:] if len(piece) < TAIL_BYTES else piece[-TAIL_BYTES:]


def find_usage(tail: bytes) -> Usage | None:
    """The token counts in the last bytes of an answer; None when the engine gave none."""
    start = -1
    for found in _USAGE.finditer(tail):  # the last one counts; some servers add a `null` after it
        start = found.start()
    if start < 0:
        return None
    prompt = _PROMPT.search(tail, start)
    if prompt is None:
        return None
    completion = _COMPLETION.search(tail, start)
    cached = _CACHED.search(tail, start)
    return Usage(
        prompt_tokens=int(prompt[1]),
        completion_tokens=int(completion[1]) if completion else 0,
        cached_tokens=int(cached[1]) if cached else 0,
    )
