"""A run's figures against numpy: quantiles within their stated error, counts, warm-up and series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbctl.sim.measurement import LEAST_S, MOST_S, RELATIVE_ERROR, Histogram, Measurement

LATENCIES = st.lists(st.floats(LEAST_S, MOST_S), min_size=1, max_size=200)


@given(LATENCIES, st.floats(0.0, 1.0))
def test_a_quantile_is_within_the_stated_error_of_the_exact_one(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = float(np.sort(values)[max(int(np.ceil(share * len(values))), 1) - 1])
    measured = histogram.quantile(share)
    assert measured is not None
    assert measured == pytest.approx(exact, rel=RELATIVE_ERROR * 1.0001)


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_percentiles_of_many_latencies_are_numpys(percent: int) -> None:
    values = np.random.default_rng(1).lognormal(0.0, 1.0, 20_000)
    histogram = Histogram()
    for value in values.tolist():
        histogram.add(value)
    # A thousandth of the histogram's, and as much for neighbours that numpy interpolates between.
    assert histogram.quantile(percent / 100) == pytest.approx(np.percentile(values, percent), rel=0.002)


def test_latencies_out_of_range_count_at_its_ends() -> None:
    histogram = Histogram()
    for value in (0.0, 1e9):
        histogram.add(value)
    assert histogram.quantile(0.5) == pytest.approx(LEAST_S, rel=0.01)
    assert histogram.quantile(1.0) == pytest.approx(MOST_S, rel=0.01)


def test_a_histogram_of_nothing_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


def over(measurement: Measurement, arrived_s: float, latency_s: float, cell: int = 0, status: int = 200) -> None:
    code = "" if status < 400 else "queue_full"
    measurement.ended(arrived_s + latency_s, 0, cell, "", arrived_s, latency_s, 0.1, status, code)


def test_a_run_is_counted_by_status_reason_and_cell() -> None:
    measurement = Measurement(["a", "b"], from_s=0.0, until_s=10.0)
    over(measurement, 1.0, 0.5, cell=0)
    over(measurement, 2.0, 1.5, cell=1)
    over(measurement, 3.0, 0.1, cell=1, status=503)
    over(measurement, 4.0, 0.1, cell=-1, status=503)
    figures = measurement.figures(unfinished=2)
    assert (figures.requests, figures.ok, figures.errors, figures.unfinished) == (6, 2, 2, 2)
    assert figures.mean_s == 1.0
    assert figures.max_s == 1.5
    assert figures.error_share == 0.5
    assert figures.statuses == {"200": 2, "503": 2}
    assert figures.reasons == {"queue_full": 2}
    assert figures.cell_shares == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3)}


def test_an_answer_that_was_cut_is_an_error_and_first_bytes_are_those_of_what_went_well() -> None:
    measurement = Measurement(["a"], from_s=0.0, until_s=10.0)
    measurement.ended(3.0, 0, 0, "", 1.0, 2.0, 0.4, 200, "")
    measurement.ended(5.0, 0, 0, "", 1.0, 4.0, 0.9, 200, "upstream_closed")
    figures = measurement.figures()
    assert (figures.ok, figures.errors, figures.reasons) == (1, 1, {"upstream_closed": 1})
    assert (figures.mean_s, figures.ttft_mean_s) == (2.0, 0.4)
    assert figures.ttft_p99_s == pytest.approx(0.4, rel=RELATIVE_ERROR)


def test_only_what_arrives_between_warm_up_and_end_is_measured() -> None:
    measurement = Measurement(["a"], from_s=5.0, until_s=10.0)
    for arrived_s in (4.99, 5.0, 9.99, 10.0):
        over(measurement, arrived_s, 3.0)
    assert measurement.figures().ok == 2


def test_a_run_without_a_success_has_no_latency() -> None:
    measurement = Measurement(["a"], from_s=0.0, until_s=10.0)
    over(measurement, 1.0, 0.1, status=500)
    figures = measurement.figures()
    assert figures.mean_s is None
    assert figures.p99_s is None
    assert figures.error_share == 1.0


def test_a_series_has_latency_errors_and_mean_rif_of_each_interval() -> None:
    measurement = Measurement(["a"], from_s=9.0, until_s=25.0, interval_s=10.0)
    over(measurement, 5.0, 10.0)  # in flight from 5 to 15
    over(measurement, 12.0, 1.0, status=503)
    over(measurement, 22.0, 40.0)  # and beyond the end
    first, second, last = measurement.figures().series
    assert (first.from_s, first.requests, first.errors, first.latency_s, first.rif) == (0.0, 1, 0, 10.0, 0.5)
    assert (second.requests, second.errors, second.latency_s) == (1, 1, None)
    assert second.rif == pytest.approx((5.0 + 1.0) / 10.0)
    assert last.rif == pytest.approx(3.0 / 5.0)


def test_memory_does_not_grow_with_the_run() -> None:
    import tracemalloc

    measurement = Measurement(["a"], from_s=0.0, until_s=1e6, interval_s=1e4)
    tracemalloc.start()
    try:
        for number in range(2_000):
            over(measurement, number * 1.0, 0.5 + number % 7)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20_000):
            over(measurement, 2_000 + number * 1.0, 0.5 + number % 7)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000
