"""A simulated run in figures, and intervals over several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, sqrt

from msgspec import Struct

LEVEL = 0.95


# Shares of requests that fail which differ by more make means that do not compare.
_UNLIKE = 0.002


class Point(Struct, frozen=True):
    """One interval of a run. Requests belong to the one in which they arrived; `rif` is the mean over its time.

    latency_s: mean of those that went well, None when none did.
    """

    from_s: float
    requests: int
    errors: int
    latency_s: float | None
    rif: float


class RunFigures(Struct, frozen=True):
    """One run in figures: of the requests that arrived after the warm-up, latencies as clients saw them [s].

    Latencies are those of requests that went well. `unfinished` were still open when the run was given up.
    """

    requests: int
    ok: int
    errors: int
    unfinished: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float | None
    statuses: dict[str, int]
    reasons: dict[str, int]
    cell_shares: dict[str, float]
    series: list[Point]
    ttft_mean_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None

    @property
    def lost_share(self) -> float:
        """Of all requests, those that did not go well: errors, and those that were not over."""
        return 1.0 - self.ok / self.requests if self.requests else 0.0

    @property
    def error_share(self) -> float:
        """Errors per request that is over."""
        over = self.ok + self.errors
        return self.errors / over if over else 0.0


class Estimate(Struct, frozen=True):
    """A mean with its 95 % confidence interval, which takes at least two samples."""

    mean: float
    low: float | None
    high: float | None
    samples: int


def unlike(lost: Sequence[float]) -> bool:
    """Whether shares of requests that were lost differ so much between runs that their means are of unlike requests."""
    return max(lost, default=0.0) - min(lost, default=0.0) > _UNLIKE


def estimate(groups: Mapping[int, Sequence[float]]) -> Estimate | None:
    """Mean and Student's interval of values in groups (trials of scenarios); None when there are none.

    Trials of one scenario resemble each other, so with several scenarios their means are the samples: taken one by
    one, trials would promise more than they know of further scenarios. With one scenario the trials are the samples,
    and the interval speaks of that scenario alone.
    """
    filled = [values for values in groups.values() if values]
    if not filled:
        return None
    samples = [fsum(values) / len(values) for values in filled] if len(filled) > 1 else list(filled[0])
    count = len(samples)
    mean = fsum(samples) / count
    if count < 2:
        return Estimate(mean, None, None, count)
    from scipy.special import stdtrit

    variance = fsum((sample - mean) ** 2 for sample in samples) / (count - 1)
    half = float(stdtrit(count - 1, 0.5 + LEVEL / 2)) * sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half, count)
