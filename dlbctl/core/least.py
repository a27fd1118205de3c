"""The least of some numbers: where it stands, with chance among those that count as equal to it."""

from __future__ import annotations

import random
from typing import Final

_NEVER: Final = float("inf")


def any_least(values: list[float], rng: random.Random, tie_share: float = 0.0) -> tuple[int, bool]:
    """Index of a least number, each as likely, and whether there was but one. What is no number counts as infinite.

    Numbers above 0 that exceed the least by no more than this share of it are as good as the least.
    """
    least = min(values)
    if least != least:  # as it is where the first of them is no number
        values = [min(_NEVER, value) for value in values]
        least = min(values)
    limit = least * (1.0 + tie_share) if least > 0.0 else least
    found = [index for index, value in enumerate(values) if value <= limit]
    if len(found) == 1:
        return found[0], True
    return found[int(rng.random() * len(found))], False
