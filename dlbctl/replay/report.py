"""A run's summary: percentiles, rates, shares, and whether the run may be believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from array import array
    from collections import Counter
    from collections.abc import Sequence

    from dlbctl.replay.slo import Objective
    from dlbctl.replay.tally import Tally
    from dlbctl.replay.trace import LeftOut

# Above this the generator's own lateness is a part of every latency it reports.
LOOP_LAG_LIMIT_S = 0.005


class Spread(msgspec.Struct, frozen=True):
    """Percentiles of a sample [s], of which there are `count`; None where there are none."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None


class Counts(msgspec.Struct, frozen=True):
    """rows == sent + left_out; sent == ok + failed + interrupted."""

    rows: int
    sent: int
    ok: int
    failed: int
    interrupted: int
    left_out: int
    moved: int
    reconnected: int
    without_usage: int


class LeftOutRows(msgspec.Struct, frozen=True):
    """Rows left out for one reason; lines names the first few."""

    rows: int
    lines: list[str]


class Rates(msgspec.Struct, frozen=True):
    """Per second of the run, from its first instant to its last answer."""

    duration_s: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float


class Tokens(msgspec.Struct, frozen=True):
    """As usage reports them. prompt_rescale: measured prompt tokens per token of the trace."""

    prompt: int
    completion: int
    cached: int
    cached_share: float | None
    prompt_rescale: float | None


class Goodput(msgspec.Struct, frozen=True):
    """The share of all requests sent that kept every limit; met: whether that is the share asked for."""

    ttft_s: float | None
    e2e_s: float | None
    target: float | None
    share: float
    met: bool | None


class Share(msgspec.Struct, frozen=True):
    """Requests of one target, cell or server, and their part of those that name one."""

    requests: int
    share: float


class Summary(msgspec.Struct, frozen=True):
    """Everything summary.json holds."""

    run: dict[str, object]
    valid: bool
    invalid_because: list[str]
    counts: Counts
    failed: dict[str, int]
    left_out: dict[str, LeftOutRows]
    ttft_s: Spread
    e2e_s: Spread
    itl_s: Spread
    tpot_s: Spread
    schedule_lag_s: Spread
    loop_lag_s: Spread
    rates: Rates
    tokens: Tokens
    shares: dict[str, dict[str, Share]]
    slo: Goodput | None


def summarise(
    tally: Tally,
    left_out: LeftOut,
    loop_late_s: Sequence[float],
    *,
    rows: int,
    objective: Objective | None,
    run: dict[str, object],
) -> Summary:
    """Sum up a run of a trace of `rows` rows. `run` says what was run, and is passed on as it is."""
    loop_lag = spread(loop_late_s)
    invalid_because = _doubts(loop_lag)
    return Summary(
        run=run,
        valid=not invalid_because,
        invalid_because=invalid_because,
        counts=_counts(tally, left_out, rows),
        failed=dict(tally.failed.most_common()),
        left_out={reason: LeftOutRows(count, left_out.examples[reason]) for reason, count in left_out.counts.items()},
        ttft_s=spread(tally.ttft_s),
        e2e_s=spread(tally.e2e_s),
        itl_s=spread(tally.itl_s),
        tpot_s=spread(tally.tpot_s),
        schedule_lag_s=spread(tally.lag_s),
        loop_lag_s=loop_lag,
        rates=_rates(tally),
        tokens=_tokens(tally),
        shares={kind: _shares(names) for kind, names in tally.shares.items()},
        slo=_goodput(tally, objective),
    )


def spread(sample: Sequence[float] | array[float]) -> Spread:
    """Percentiles of a sample, linear between neighbours."""
    if not len(sample):
        return Spread(0)
    import numpy as np

    values = np.asarray(sample, dtype=np.float64)
    p50, p90, p95, p99 = (round(float(value), 6) for value in np.percentile(values, [50, 90, 95, 99]))
    return Spread(len(values), p50, p90, p95, p99, round(float(values.max()), 6), round(float(values.mean()), 6))


def flatten(summary: Summary) -> dict[str, object]:
    """The summary's numbers under one name each (`ttft_s_p50`), for a table of runs; no cells or servers."""
    built = msgspec.to_builtins(summary)
    flat = {"trace": summary.run.get("trace"), "valid": summary.valid, **built["counts"], **built["rates"]}
    for section in ("tokens", "ttft_s", "e2e_s", "itl_s", "tpot_s", "schedule_lag_s", "loop_lag_s"):
        flat |= {f"{section}_{name}": value for name, value in built[section].items()}
    return flat | {"goodput": summary.slo.share if summary.slo else None}


def _doubts(loop_lag: Spread) -> list[str]:
    if loop_lag.p99 is None or loop_lag.p99 <= LOOP_LAG_LIMIT_S:
        return []
    late_ms, limit_ms = loop_lag.p99 * 1e3, LOOP_LAG_LIMIT_S * 1e3
    return [f"the replay's own event loop was {late_ms:.1f} ms late at p99 (limit {limit_ms:g} ms)"]


def _counts(tally: Tally, left_out: LeftOut, rows: int) -> Counts:
    assert tally.sent + left_out.total == rows, f"{tally.sent} sent + {left_out.total} left out != {rows} rows"
    return Counts(
        rows=rows,
        sent=tally.sent,
        ok=tally.results["ok"],
        failed=tally.results["failed"],
        interrupted=tally.results["interrupted"],
        left_out=left_out.total,
        moved=tally.moved,
        reconnected=tally.reconnected,
        without_usage=tally.without_usage,
    )


def _rates(tally: Tally) -> Rates:
    duration_s = tally.last_end_s
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    return Rates(
        duration_s=round(duration_s, 6),
        requests_per_s=round(tally.results["ok"] * per_s, 3),
        input_tokens_per_s=round(tally.prompt_tokens * per_s, 3),
        output_tokens_per_s=round(tally.completion_tokens * per_s, 3),
    )


def _tokens(tally: Tally) -> Tokens:
    prompt, estimated = tally.prompt_tokens, tally.estimated_prompt_tokens
    return Tokens(
        prompt=prompt,
        completion=tally.completion_tokens,
        cached=tally.cached_tokens,
        cached_share=round(tally.cached_tokens / prompt, 6) if prompt else None,
        prompt_rescale=round(prompt / estimated, 6) if estimated else None,
    )


def _shares(names: Counter[str]) -> dict[str, Share]:
    total = names.total()
    return {name: Share(count, round(count / total, 6)) for name, count in names.most_common()}


def _goodput(tally: Tally, objective: Objective | None) -> Goodput | None:
    if objective is None:
        return None
    share = tally.met_objective / tally.sent if tally.sent else 0.0
    met = None if objective.goodput is None else share >= objective.goodput
    return Goodput(objective.ttft_s, objective.e2e_s, objective.goodput, round(share, 6), met)
