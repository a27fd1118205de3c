from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.engine import wording


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.integers(0, 500))
def test_pieces_make_up_the_whole_and_each_token_is_a_word(pieces: list[int], variant: int) -> None:
    text, position = b"", 0
    for length in pieces:
        text += wording.text(position, position + length, variant)
        position += length
    assert text == wording.text(0, position, variant)
    assert len(text.split()) == position
    assert not text.startswith(b" ")
