"""What is measured of a simulated run, in memory that does not grow with it.

Called for every request, so it is kept apart from the structures that come of it (`statistics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, log, sqrt

from dlbctl.sim.statistics import Point, RunFigures

# Buckets grow by 0.2 %, so their geometric middle is within a thousandth of anything in them: ratios of percentiles are
# compared, and these differ by less than a percent.
_GROWTH = 1.002
RELATIVE_ERROR = sqrt(_GROWTH) - 1.0
LEAST_S, MOST_S = 1e-5, 1e5
_PER_LOG = 1.0 / log(_GROWTH)
_BUCKETS = ceil(log(MOST_S / LEAST_S) * _PER_LOG)


class Histogram:
    """Counts of latencies [s] in buckets of equal ratio: quantiles within RELATIVE_ERROR from LEAST_S to MOST_S."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets = [0] * _BUCKETS

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}>"

    def add(self, value_s: float) -> None:
        """Count a latency; one outside the range counts at its end."""
        bucket = int(log(value_s / LEAST_S) * _PER_LOG) if value_s > LEAST_S else 0
        self._buckets[min(bucket, _BUCKETS - 1)] += 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """The latency [s] that `share` of those counted do not exceed; None when there are none."""
        if not self.count:
            return None
        rank = max(ceil(share * self.count), 1)
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= rank:
                return LEAST_S * float(_GROWTH ** (bucket + 0.5))
        raise AssertionError("the buckets hold all that was counted")


class _Interval:
    __slots__ = ("errors", "flight_s", "ok", "sum_s")

    def __init__(self) -> None:
        self.ok = 0
        self.errors = 0
        self.sum_s = 0.0
        self.flight_s = 0.0  # request-seconds in flight


class Measurement:
    """An observer that sums a run up.

    cells: names, as the world numbers them. from_s .. until_s: requests count that arrive then. interval_s: length of
    the intervals of the series, which covers the time from 0 to until_s; 0 for no series.
    """

    def __init__(self, cells: Sequence[str], *, from_s: float, until_s: float, interval_s: float = 0.0) -> None:
        self._cells = cells
        self._from_s, self._until_s, self._interval_s = from_s, until_s, interval_s
        self._latencies = Histogram()
        self._sum_s = 0.0
        self._first_bytes = Histogram()
        self._first_sum_s = 0.0
        self._max_s = 0.0
        self._statuses: Counter[int] = Counter()
        self._reasons: Counter[str] = Counter()
        self._chosen = [0] * len(cells)
        self._series = [_Interval() for _ in range(ceil(until_s / interval_s - 1e-9) if interval_s else 0)]

    def __repr__(self) -> str:
        return f"<Measurement: {self._latencies.count} ok, {self._statuses.total()} over>"

    def ended(
        self,
        at_s: float,  # noqa: ARG002 - this and others are of no interest here
        source: int,  # noqa: ARG002
        cell: int,
        server: str,  # noqa: ARG002
        arrived_s: float,
        latency_s: float,
        ttft_s: float,
        status: int,
        code: str,
    ) -> None:
        """A request is over."""
        ok = not code  # an answer that was cut has status 200
        if self._series:
            self._put_in_series(arrived_s, latency_s, ok)
        if not self._from_s <= arrived_s < self._until_s:
            return
        self._statuses[status] += 1
        if cell >= 0:
            self._chosen[cell] += 1
        if not ok:
            self._reasons[code] += 1
            return
        self._latencies.add(latency_s)
        self._sum_s += latency_s
        self._first_bytes.add(ttft_s)
        self._first_sum_s += ttft_s
        self._max_s = max(self._max_s, latency_s)

    def _put_in_series(self, arrived_s: float, latency_s: float, ok: bool) -> None:
        length_s, series = self._interval_s, self._series
        index = int(arrived_s / length_s)
        if index >= len(series):
            return
        if ok:
            series[index].ok += 1
            series[index].sum_s += latency_s
        else:
            series[index].errors += 1
        gone_s = arrived_s + latency_s
        while index < len(series) and index * length_s < gone_s:
            ends_s = min((index + 1) * length_s, self._until_s)
            within_s = min(gone_s, ends_s) - max(arrived_s, index * length_s)
            series[index].flight_s += within_s
            index += 1

    def figures(self, unfinished: int = 0) -> RunFigures:
        """The sums so far."""
        latencies, first_bytes, chosen = self._latencies, self._first_bytes, sum(self._chosen)
        p50_s, p90_s, p95_s, p99_s = (latencies.quantile(share) for share in (0.5, 0.9, 0.95, 0.99))
        over = self._statuses.total()
        return RunFigures(
            requests=over + unfinished,
            ok=latencies.count,
            errors=over - latencies.count,
            unfinished=unfinished,
            mean_s=self._sum_s / latencies.count if latencies.count else None,
            p50_s=p50_s,
            p90_s=p90_s,
            p95_s=p95_s,
            p99_s=p99_s,
            max_s=self._max_s if latencies.count else None,
            statuses={str(status): count for status, count in sorted(self._statuses.items())},
            reasons=dict(sorted(self._reasons.items())),
            cell_shares={
                name: count / chosen if chosen else 0.0 for name, count in zip(self._cells, self._chosen, strict=True)
            },
            series=[self._point(number, sums) for number, sums in enumerate(self._series)],
            ttft_mean_s=self._first_sum_s / first_bytes.count if first_bytes.count else None,
            ttft_p50_s=first_bytes.quantile(0.5),
            ttft_p95_s=first_bytes.quantile(0.95),
            ttft_p99_s=first_bytes.quantile(0.99),
        )

    def _point(self, number: int, sums: _Interval) -> Point:
        from_s = number * self._interval_s
        length_s = min(self._interval_s, self._until_s - from_s)
        latency_s = sums.sum_s / sums.ok if sums.ok else None
        return Point(from_s, sums.ok + sums.errors, sums.errors, latency_s, sums.flight_s / length_s)
