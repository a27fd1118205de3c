"""Seconds per prompt token against numpy's least squares."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from dlbctl.core.prefill import HALF_LIFE_S, PrefillRate


def test_it_is_the_weighted_least_squares_solution() -> None:
    """Times to first token with an SD of 20 ms, loads that grow with prompts."""
    rng, rate = Random(3), PrefillRate()
    rows = []
    for number in range(400):
        at_s, tokens = 0.5 * number, 128 + rng.gammavariate(1.5, 600)
        load = rng.uniform(0, 20) + tokens / 1000
        ttft_s = 0.05 + 0.00008 * tokens + 0.01 * load + rng.gauss(0, 0.02)
        rate.add(at_s, tokens, load, ttft_s)
        rows.append((at_s, tokens, load, ttft_s))
    at, tokens_, loads, ttfts = np.array(rows).T
    root = np.sqrt(0.5 ** ((at[-1] - at) / HALF_LIFE_S))
    design = np.stack((np.ones_like(at), tokens_, loads), axis=1)
    expected = np.linalg.lstsq(design * root[:, None], ttfts * root, rcond=None)[0][1]
    assert rate.s_per_token == pytest.approx(expected, rel=1e-9)
    assert rate.s_per_token == pytest.approx(0.00008, rel=0.05)
    assert rate.told(at_s) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize("case", ["few", "alike", "faster when longer"])
def test_what_cannot_be_told_is_zero(case: str) -> None:
    rng, rate = Random(3), PrefillRate()
    for number in range(20 if case == "few" else 200):
        tokens = 500.0 + (rng.random() if case == "alike" else 400 * rng.random())
        rate.add(0.1 * number, tokens, 1.0, 0.1 + (-1e-4 if case == "faster when longer" else 1e-4) * tokens)
    assert rate.s_per_token == 0.0


def test_an_idle_server_has_a_rate_too() -> None:
    rng, rate = Random(3), PrefillRate()
    for number in range(200):
        tokens = 400 * rng.random()
        rate.add(0.1 * number, tokens, 0.0, 0.1 + 1e-4 * tokens)
    assert rate.s_per_token == pytest.approx(1e-4)
