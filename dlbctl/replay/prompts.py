"""Prompts with the trace's prefix structure: equal block ids are equal words, on every machine.

A block of n tokens is n words of one token each, joined by single spaces. A shorter block of the same id is
the longer one's beginning, so that a partial last block is still a shared prefix.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128
from typing import TYPE_CHECKING

from dlbctl.replay.trace import BLOCK_TOKENS
from dlbctl.replay.words import WORDS

if TYPE_CHECKING:
    from dlbctl.replay.trace import Row

# Some 25 MB of text: the working set of an hour of a large trace is larger, its reuse is mostly recent.
_CACHED_BLOCKS = 8192
_NAMING_WORDS = 3
_PHRASE_WORDS = 8


def _phrase(number: int) -> bytes:
    draws = shake_128(b"phrase %d" % number).digest(2 * _PHRASE_WORDS)
    pairs = zip(draws[::2], draws[1::2], strict=True)
    return b" ".join(WORDS[(256 * high + low) % len(WORDS)] for high, low in pairs)


# Blocks are joined from phrases: word by word a new prompt of 24,000 tokens took 2.7 ms of the event loop.
_PHRASES = tuple(map(_phrase, range(256)))


def block_text(block_id: int, words: int) -> bytes:
    """The first `words` words of a block.

    The first three spell the id in base 512, lowest digit first: neighbours in a trace differ at their first
    word, and no two ids below 2**27 agree in three. The rest are phrases drawn by a stable hash: SHAKE, which
    unlike xxh3 gives as many bytes as asked for in one call.
    """
    naming = [WORDS[(block_id >> (9 * place)) & 511] for place in range(min(words, _NAMING_WORDS))]
    whole, rest = divmod(words - len(naming), _PHRASE_WORDS)
    phrases = [_PHRASES[draw] for draw in shake_128(b"block %d" % block_id).digest(whole + 1)]
    cut = phrases.pop().split(b" ")[:rest]
    return b" ".join((*naming, *phrases, *cut))


class PromptBuilder:
    """Builds prompts; keeps the most recently used blocks' text, a bounded number of them."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS, *, cached_blocks: int = _CACHED_BLOCKS) -> None:
        self._block_tokens = block_tokens
        self._block = lru_cache(maxsize=cached_blocks)(block_text)

    def __repr__(self) -> str:
        info = self._block.cache_info()
        return f"<PromptBuilder {info.currsize} blocks cached, {info.hits} hits, {info.misses} misses>"

    def build(self, row: Row) -> bytes:
        """The row's prompt: `row.input_tokens` words of ASCII letters, single spaces between them."""
        size, last = self._block_tokens, len(row.block_ids) - 1
        whole = [self._block(block_id, size) for block_id in row.block_ids[:last]]
        whole.append(self._block(row.block_ids[last], row.input_tokens - last * size))
        return b" ".join(whole)
