"""Prompts keep a trace's prefix structure, on every machine."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.replay.prompts import PromptBuilder, block_text
from dlbctl.replay.trace import Row
from dlbctl.replay.words import WORDS

IDS = st.integers(0, 2**27 - 1)


def row(tokens: int, *ids: int) -> Row:
    return Row(1, 0.0, tokens, 10, ids, "s")


def test_the_words_are_512_and_distinct_and_need_no_escaping() -> None:
    assert len(WORDS) == len(set(WORDS)) == 512
    assert all(word.isalpha() and word.islower() for word in WORDS)


def test_a_block_s_text_never_changes() -> None:
    assert block_text(0, 6) == b"time time time seven street general"
    assert block_text(182_789, 13) == b"man hold time door know group every project allow car personal ready any"


def test_a_block_s_text_is_the_same_in_another_process() -> None:
    program = "from dlbctl.replay.prompts import block_text; print(block_text(77, 512).decode(), end='')"
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert found.stdout == block_text(77, 512)


@settings(derandomize=True, deadline=None)
@given(IDS, st.integers(1, 600), st.integers(1, 600))
def test_a_shorter_block_is_the_beginning_of_a_longer_one(block_id: int, some: int, more: int) -> None:
    short, long = sorted((some, more))
    words = block_text(block_id, long).split(b" ")
    assert len(words) == long
    assert words[:short] == block_text(block_id, short).split(b" ")


@settings(derandomize=True, deadline=None)
@given(IDS, IDS)
def test_blocks_of_two_ids_differ_within_three_words(one: int, other: int) -> None:
    assert (block_text(one, 3) == block_text(other, 3)) == (one == other)


def test_neighbouring_ids_differ_at_their_first_word() -> None:
    assert len({block_text(block_id, 1) for block_id in range(1000, 1512)}) == 512


@settings(derandomize=True, deadline=None)
@given(st.integers(-(2**70), 2**70))
def test_any_id_has_a_text(block_id: int) -> None:
    assert len(block_text(block_id, 512).split()) == 512


def test_a_prompt_has_as_many_words_as_the_row_has_tokens_and_shares_its_blocks() -> None:
    prompts = PromptBuilder()
    first, second = prompts.build(row(1300, 1, 2, 3)), prompts.build(row(1536, 1, 2, 4))
    assert [len(text.split(b" ")) for text in (first, second)] == [1300, 1536]
    assert first.split(b" ")[:1024] == second.split(b" ")[:1024]
    assert first.split(b" ")[1024] != second.split(b" ")[1024]


def test_the_cache_of_blocks_is_bounded() -> None:
    prompts = PromptBuilder(4, cached_blocks=3)
    for block_id in range(50):
        prompts.build(row(4, block_id))
    assert repr(prompts) == "<PromptBuilder 3 blocks cached, 0 hits, 50 misses>"
