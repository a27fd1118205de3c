from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.engine import prompt

WORDS = st.lists(st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=1), max_size=70)
SPACES = st.sampled_from([" ", "\n", "  ", "\t \n"])
quick = settings(derandomize=True, deadline=None, max_examples=60)


@quick
@given(WORDS, SPACES, SPACES)
def test_one_token_a_word_whatever_the_white_space(words: list[str], space: str, end: str) -> None:
    made = prompt.from_text(space + space.join(words) + end, 16)
    assert made.tokens == max(1, len(words))
    assert len(made.block_hashes) == len(words) // 16


@quick
@given(WORDS, WORDS)
def test_prompts_share_the_hashes_of_exactly_their_common_full_blocks(one: list[str], other: list[str]) -> None:
    for shared in range(0, len(one), 7):
        left = prompt.from_text(" ".join(one), 8).block_hashes
        right = prompt.from_text(" ".join(one[:shared] + other), 8).block_hashes
        same = _common(one, one[:shared] + other) // 8
        assert _common(left, right) == same


def test_a_block_that_ends_the_prompt_hashes_as_one_in_the_middle() -> None:
    words = [f"w{number}" for number in range(32)]
    whole = prompt.from_text(" ".join(words), 16).block_hashes
    assert prompt.from_text(" ".join(words[:16]) + "\n", 16).block_hashes == whole[:1]


def test_equal_blocks_after_different_ones_have_different_hashes() -> None:
    block = "same " * 16
    assert len(set(prompt.from_text(block * 3, 16).block_hashes)) == 3


def test_ids_count_one_token_each_and_chain_like_words() -> None:
    ids = list(range(100, 150))
    made = prompt.from_ids(ids, 16)
    assert (made.tokens, len(made.block_hashes)) == (50, 3)
    assert prompt.from_ids([*ids[:32], 7, *ids[33:]], 16).block_hashes[:2] == made.block_hashes[:2]
    assert prompt.from_ids([*ids[:32], 7, *ids[33:]], 16).block_hashes[2] != made.block_hashes[2]


def test_hashes_are_the_same_in_every_process() -> None:
    assert prompt.from_text("a b c d", 2).block_hashes == [9242785727729118284, 2665317030751193167]
    assert prompt.from_ids([1, 2, 3], 2).block_hashes == [571542372673154031]


def test_a_chat_costs_three_tokens_a_message_and_two_for_the_answer() -> None:
    text = prompt.chat_text([("system", "be brief"), ("user", "one two three")])
    assert prompt.from_text(text, 16).tokens == (3 + 2) + (3 + 3) + 2


def test_the_next_turn_of_a_chat_starts_with_the_turns_before() -> None:
    turns = [("user", "hello " * 40), ("assistant", "hi"), ("user", "more " * 40)]
    first = prompt.from_text(prompt.chat_text(turns[:1]), 16).block_hashes
    following = prompt.from_text(prompt.chat_text(turns), 16).block_hashes
    assert following[: len(first)] == first


def _common(one: list[Any], other: list[Any]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
