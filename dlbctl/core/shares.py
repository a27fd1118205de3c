"""Shares of requests: what weights come to, and drawing, by them or evenly."""

from __future__ import annotations

import random


def proportional(weights: list[float]) -> list[float]:
    """Shares in proportion to weights, summing to 1; equal ones where no weight is positive and finite."""
    known = [weight if 0.0 < weight < float("inf") else 0.0 for weight in weights]
    most = max(known, default=0.0)
    if most == 0.0:
        return [1.0 / len(weights)] * len(weights) if weights else []
    total = 0.0
    for weight in known:
        total += weight / most  # so scaled, no sum of finite weights is infinite
    return [weight / most / total for weight in known]


def drawn(shares: list[float], rng: random.Random) -> int:
    """An index drawn by shares, which need not sum to 1; never one of share 0, and -1 where all are."""
    total = 0.0
    for share in shares:
        total += share
    left = rng.random() * total
    chosen = -1
    for index, share in enumerate(shares):
        if share > 0.0:
            chosen = index  # the last of them, where rounding leaves something
            left -= share
            if left < 0.0:
                break
    return chosen


def pair(count: int, rng: random.Random) -> tuple[int, int]:
    """Two different indices of so many, in random order: preferring the first where they are equal is a fair coin."""
    first = int(rng.random() * count)
    second = int(rng.random() * (count - 1))
    return first, (second if second < first else second + 1)
