from __future__ import annotations

import random

import pytest

from dlbctl.engine.model import EngineModel
from dlbctl.engine.profile import load_profile
from dlbctl.engine.sweep import (
    Arrival,
    by_in_flight,
    capacity_rps,
    drive,
    poisson_times,
    prefix_hashes,
    steady_state,
)

L40S = load_profile("l40s")


def poisson(rate_rps: float, duration_s: float = 300.0) -> list[Arrival]:
    times = poisson_times(random.Random(1), rate_rps, duration_s)
    return [Arrival(at_s, 1000, 100) for at_s in times]


def test_latency_is_flat_at_first_and_linear_once_the_batch_is_full() -> None:
    one, two, full, double, triple = (steady_state(L40S, load, 1000, 100).latency_s for load in (1, 2, 64, 128, 192))
    assert two / one < 1.15
    assert double / full == pytest.approx(2, rel=0.05)
    assert triple - double == pytest.approx(double - full, rel=0.05)


def test_capacity_is_what_an_overloaded_engine_serves() -> None:
    capacity = capacity_rps(L40S, 1000, 100)
    samples = drive(EngineModel(L40S, queue_limit=100), poisson(2 * capacity))
    ends = [sample.at_s + sample.latency_s for sample in samples]
    served = sum(1 for end_s in ends if 100 <= end_s < 300) / 200
    assert served == pytest.approx(capacity, rel=0.05)


def test_below_capacity_nothing_is_refused_and_littles_law_holds() -> None:
    arrivals = poisson(0.7 * capacity_rps(L40S, 1000, 100), 1000.0)
    samples = drive(EngineModel(L40S), arrivals)
    assert [sample.at_s for sample in samples] == [arrival.at_s for arrival in arrivals]
    mean_latency_s = sum(sample.latency_s for sample in samples) / len(samples)
    mean_in_flight = sum(sample.in_flight for sample in samples) / len(samples)
    # Poisson arrivals see time averages; 8 %: some 3,700 correlated samples.
    assert mean_in_flight == pytest.approx(len(samples) / 1000.0 * mean_latency_s, rel=0.08)


def test_bins_keep_all_samples_and_never_split_a_load() -> None:
    samples = drive(EngineModel(L40S), poisson(4.0))
    bins = by_in_flight(samples, 10)
    assert sum(one.samples for one in bins) == len(samples)
    assert [one.in_flight for one in bins] == sorted(one.in_flight for one in bins)
    total_s = sum(one.latency_s * one.samples for one in bins)
    assert total_s == pytest.approx(sum(sample.latency_s for sample in samples))
    equal = drive(EngineModel(L40S), [Arrival(60.0 * n, 100, 10) for n in range(30)])
    assert [(one.in_flight, one.samples) for one in by_in_flight(equal)] == [(0.0, 30)]


def test_no_samples_make_no_bins() -> None:
    assert by_in_flight([]) == []


def test_a_shared_prefix_shortens_the_wait_for_the_first_token() -> None:
    shared = prefix_hashes(7, 8000, L40S.block_tokens)
    other = prefix_hashes(8, 8000, L40S.block_tokens)
    assert not set(shared) & set(other)
    first, again, fresh = drive(
        EngineModel(L40S),
        [Arrival(0, 8100, 5, shared), Arrival(60, 8100, 5, shared), Arrival(120, 8100, 5, other)],
    )
    assert again.ttft_s < first.ttft_s / 5
    assert fresh.ttft_s == pytest.approx(first.ttft_s)


def test_the_same_arrivals_give_the_same_samples() -> None:
    assert drive(EngineModel(L40S), poisson(5.0)) == drive(EngineModel(L40S), poisson(5.0))
