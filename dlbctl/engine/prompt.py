"""How prompts are counted and recognised without a tokenizer.

Text: one token a word, a word being what whitespace separates. Token ids: one token an id. Chats are laid
out as ChatML does, its markers and roles being words too: three tokens a message and two for the answer's
head. Every full block of tokens has a hash chained to the block before it, so equal hashes mean equal
prompts up to that block's end.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SPACE = 0x20


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's length in tokens and the chained hashes of its full blocks."""

    tokens: int
    block_hashes: list[int]


def from_text(text: str, block_tokens: int) -> Prompt:
    """A prompt of words. An empty one counts one token (a model's own start token)."""
    data = text.encode("utf-8", "replace")
    starts, ends = _word_edges(data)
    first = starts[::block_tokens].tolist()
    last = ends[block_tokens - 1 :: block_tokens].tolist()
    digest, hashes = 0, []
    for begin, end in zip(first, last, strict=False):
        digest = xxh3_64_intdigest(data[begin:end], digest)
        hashes.append(digest)
    return Prompt(max(1, len(starts)), hashes)


def from_ids(ids: Sequence[int], block_tokens: int) -> Prompt:
    """A prompt of token ids (non-negative, under 2**63)."""
    data = memoryview(array("q", ids).tobytes())
    width = 8 * block_tokens
    digest, hashes = 0, []
    for begin, end in pairwise(range(0, len(data) + 1, width)):
        digest = xxh3_64_intdigest(data[begin:end], digest)
        hashes.append(digest)
    return Prompt(max(1, len(ids)), hashes)


def chat_text(messages: Iterable[tuple[str, str]]) -> str:
    """Roles and contents as the text the model sees."""
    turns = [f"<|im_start|> {role} {content} <|im_end|> " for role, content in messages]
    return "".join(turns) + "<|im_start|> assistant"


def _word_edges(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Byte offsets of words: where each starts, and where each ends (exclusive)."""
    letters = np.zeros(len(data) + 2, dtype=np.int8)
    letters[1:-1] = np.frombuffer(data, dtype=np.uint8) > _SPACE
    edges = np.flatnonzero(np.diff(letters))
    return edges[::2], edges[1::2]
