"""The sample store and its bins: what they keep, what they forget, and that they stay fair and bounded."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.bins import BIN_LIMIT, Bin, pooled
from dlbctl.core.samples import SampleStore

HALF_LIFE_S = 90.0

samples = st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(1e-3, 1e3)), min_size=1, max_size=300)


def store(seed: int = 1, capacity: int = 4096) -> SampleStore:
    return SampleStore(Random(seed), capacity=capacity, half_life_s=HALF_LIFE_S)


def mean_latency_s(bins: list[Bin]) -> float:
    return sum(b.n_eff * b.latency_s for b in bins) / sum(b.n_eff for b in bins)


def moments(bins: list[Bin]) -> tuple[float, ...]:
    n_eff = sum(b.n_eff for b in bins)
    square = sum(b.n_eff * b.latency_s**2 * (1 + b.cv**2) for b in bins) / n_eff
    return n_eff, sum(b.n_eff * b.n for b in bins) / n_eff, mean_latency_s(bins), square


@settings(derandomize=True, deadline=None)
@given(samples)
def test_bins_keep_the_moments_of_the_samples(rows: list[tuple[float, float]]) -> None:
    kept = store()
    for n, latency_s in rows:
        kept.add(0.0, 0.0, n, latency_s)
    bins = kept.bins(0.0)
    table = np.array(rows)
    expected = (len(rows), table[:, 0].mean(), table[:, 1].mean(), (table[:, 1] ** 2).mean())
    assert moments(bins) == pytest.approx(expected, rel=1e-9)


@settings(derandomize=True, deadline=None)
@given(samples)
def test_bins_are_ordered_bounded_and_of_about_equal_weight(rows: list[tuple[float, float]]) -> None:
    kept = store()
    for n, latency_s in rows:
        kept.add(0.0, 0.0, n, latency_s)
    bins = kept.bins(0.0)
    loads = [b.n for b in bins]
    assert len(bins) <= min(BIN_LIMIT, max(len(rows) // 8, 1))
    assert all(low <= high * (1 + 1e-12) for low, high in pairwise(loads))
    assert all(abs(b.n_eff - len(rows) / len(bins)) <= 1.0 + 1e-9 for b in bins)


def test_a_bin_tells_the_spread_of_its_latencies() -> None:
    kept = store()
    for latency_s in (1.0, 3.0):
        kept.add(0.0, 0.0, 2.0, latency_s)
    assert kept.bins(0.0) == [Bin(n=2.0, latency_s=2.0, n_eff=2.0, cv=0.5)]


def test_a_sample_counts_half_after_a_half_life() -> None:
    kept = store()
    kept.add(0.0, 0.0, 1.0, 4.0)
    kept.add(HALF_LIFE_S, HALF_LIFE_S, 1.0, 1.0)
    (only,) = kept.bins(HALF_LIFE_S)
    assert only.n_eff == pytest.approx(1.5)
    assert only.latency_s == pytest.approx((0.5 * 4.0 + 1.0) / 1.5)


def test_what_nobody_refreshes_tells_less_and_less_and_then_nothing() -> None:
    kept = store()
    for i in range(400):
        kept.add(0.0, 0.0, float(i % 7), 1.0)
    n_eff = [sum(b.n_eff for b in kept.bins(age * HALF_LIFE_S)) for age in (0, 1, 2)]
    assert n_eff == pytest.approx([400.0, 200.0, 100.0])
    assert kept.bins(60 * HALF_LIFE_S) == []
    assert kept.bins(1e9) == []


def test_no_samples_make_no_bins() -> None:
    assert store().bins(5.0) == []
    assert pooled([]) == []


def test_memory_is_fixed_and_the_newest_samples_are_kept() -> None:
    kept = store(capacity=64)
    for i in range(1000):
        kept.add(i * 10.0, i * 9.0, 1.0, float(i + 1))
    assert len(kept) == 64
    assert repr(kept) == "SampleStore(64/64, half_life_s=90)"
    # 63 slots back is far beyond three half-lives: of the 936 dropped, none was younger.
    assert min(b.latency_s for b in kept.bins(9990.0)) > 936.0


def test_a_burst_in_a_quiet_cell_is_kept_whole() -> None:
    kept = store(capacity=64)
    for i in range(16):
        kept.add(500.0 + 0.001 * i, 500.0 + 0.001 * i, 1.0, 1.0)
    assert len(kept) == 16


def test_a_busy_cell_remembers_several_half_lives() -> None:
    kept = store(capacity=256)
    rate = 100
    for i in range(600 * rate):
        kept.add(i / rate, i / rate, float(i // rate), 1.0)
    bins = kept.bins(600.0)
    assert bins[0].n < 600 - 1.4 * HALF_LIFE_S
    # A slot each 270 s / 256, times the mean life of a weight.
    assert sum(b.n_eff for b in bins) == pytest.approx(256 / 270 * HALF_LIFE_S / np.log(2.0), rel=0.2)


def test_a_burst_too_fast_for_the_ring_costs_little_confidence() -> None:
    kept = store(capacity=256)
    for i in range(5000):
        kept.add(0.0, 0.0, float(i % 16), 1.0)
    # A quarter of the ring ran ahead of its pace; the last slot stands for the rest, and counts as four.
    assert sum(b.n_eff for b in kept.bins(0.0)) == pytest.approx(68**2 / (64 + 16))


def test_sharing_slots_prefers_no_place_in_a_batch() -> None:
    """An engine answers its batches in order; were the first of each always kept, the mean would be 1 s."""
    kept = store(capacity=1024)
    for batch in range(4000):
        for place in range(8):
            kept.add(batch * 0.25, batch * 0.25, 3.0, 1.0 + place)
    # 1,024 draws from 1..8: the mean's standard error is 0.07.
    assert mean_latency_s(kept.bins(1000.0)) == pytest.approx(4.5, abs=0.3)


def test_the_same_seed_keeps_the_same_samples() -> None:
    first, second = store(seed=5, capacity=32), store(seed=5, capacity=32)
    for kept in (first, second):
        for i in range(500):
            kept.add(i * 0.01, i * 0.01, float(i % 9), 1.0 + i)
    assert first.bins(5.0) == second.bins(5.0)


def test_pooled_bins_of_leaves_tell_what_one_leaf_would_know() -> None:
    rng = Random(3)
    leaves, whole = [store(1), store(2), store(3)], store(4)
    for i in range(1500):
        n = rng.uniform(0.0, 16.0)
        latency_s = (1.0 + n) * rng.lognormvariate(0.0, 0.5)
        leaves[i % 3].add(i * 0.1, i * 0.1, n, latency_s)
        whole.add(i * 0.1, i * 0.1, n, latency_s)
    together = pooled(b for leaf in leaves for b in leaf.bins(150.0))
    alone = whole.bins(150.0)
    assert len(together) == len(alone) == BIN_LIMIT
    assert moments(together) == pytest.approx(moments(alone), rel=1e-9)
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.n == pytest.approx(theirs.n, abs=0.5)


def test_bins_travel_as_json_and_impossible_ones_are_refused() -> None:
    sent = Bin(n=1.5, latency_s=0.25, n_eff=1.75, cv=0.8)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=Bin) == sent
    for wrong in ({"n_eff": 0.0}, {"latency_s": -1.0}, {"n": -1.0}, {"cv": -0.1}):
        with pytest.raises(msgspec.ValidationError, match="bin:"):
            msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(sent) | wrong), type=Bin)
