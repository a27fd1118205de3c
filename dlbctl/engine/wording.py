"""The text an engine makes: short common words, one a token, all of one width so that a slice is a text."""

from __future__ import annotations

_WORDS = (
    "the and you that was for are with his they one had not but what all were when your can said "
    "there use each which she how their will other about out many then them these some her would make "
    "like him into time has look two more see way who its now long day did get come made may part"
)
_WIDTH = 4
_TOKENS = b"".join(b" " + word.encode() for word in _WORDS.split() if len(word) == _WIDTH - 1)
_COUNT = len(_TOKENS) // _WIDTH


def text(first: int, end: int, variant: int = 0) -> bytes:
    """The tokens `first` to `end` (exclusive) of an answer, as ASCII; each but the first has a space."""
    begin = (first + variant) % _COUNT
    length = end - first
    words = _TOKENS * (1 + (begin + length) // _COUNT)
    return words[begin * _WIDTH + (first == 0) : (begin + length) * _WIDTH]
