"""A run's summary as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from dlbctl.replay.report import Spread, Summary


def tables(summary: Summary) -> list[Table]:
    """The tables of a report; shares only where there is something to share."""
    shown = [_counts_table(summary), _latency_table(summary), _rates_table(summary)]
    if summary.shares["cell"] or summary.shares["server"] or len(summary.shares["target"]) > 1:
        shown.append(_shares_table(summary))
    return shown


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _counts_table(summary: Summary) -> Table:
    table = _table("Requests", "", "count", "lines")
    counts = summary.counts
    table.add_row("rows", str(counts.rows))
    table.add_row("sent", str(counts.sent))
    table.add_row("ok", str(counts.ok))
    for reason, count in summary.failed.items():
        table.add_row(f"failed: {reason}", str(count))
    if counts.interrupted:
        table.add_row("interrupted", str(counts.interrupted))
    for reason, left_out in summary.left_out.items():
        table.add_row(f"left out: {reason}", str(left_out.rows), _line_numbers(left_out.lines, left_out.rows))
    for name, count in (("moved to another target", counts.moved), ("reconnected", counts.reconnected)):
        if count:
            table.add_row(name, str(count))
    return table


def _line_numbers(lines: list[str], rows: int) -> str:
    numbers = [line.removeprefix("line ").partition(":")[0] for line in lines]
    return ", ".join(numbers) + (", ..." if rows > len(lines) else "")


def _latency_table(summary: Summary) -> Table:
    table = _table("Latency from the scheduled instant (ms)", "", "p50", "p90", "p95", "p99", "max", "mean")
    rows = {
        "first token": summary.ttft_s,
        "end to end": summary.e2e_s,
        "between chunks": summary.itl_s,
        "per output token": summary.tpot_s,
        "schedule lag": summary.schedule_lag_s,
        "event loop lag": summary.loop_lag_s,
    }
    for name, spread in rows.items():
        table.add_row(name, *_milliseconds(spread))
    return table


def _milliseconds(spread: Spread) -> list[str]:
    values = (spread.p50, spread.p90, spread.p95, spread.p99, spread.max, spread.mean)
    return ["-" if value is None else f"{value * 1e3:.1f}" for value in values]


def _rates_table(summary: Summary) -> Table:
    table = _table("Throughput", "", "value")
    rates, tokens = summary.rates, summary.tokens
    table.add_row("duration", f"{rates.duration_s:.1f} s")
    table.add_row("requests", f"{rates.requests_per_s:.2f} /s")
    table.add_row("input tokens", f"{rates.input_tokens_per_s:.0f} /s")
    table.add_row("output tokens", f"{rates.output_tokens_per_s:.0f} /s")
    if tokens.cached_share is not None:
        table.add_row("prompt tokens from cache", f"{tokens.cached_share:.1%}")
    if tokens.prompt_rescale is not None:
        table.add_row("prompt tokens, measured / trace", f"{tokens.prompt_rescale:.3f}")
    if summary.slo is not None:
        table.add_row("goodput", f"{summary.slo.share:.1%}")
    return table


def _shares_table(summary: Summary) -> Table:
    table = _table("Shares", "", "requests", "share")
    for kind, names in summary.shares.items():
        for name, part in names.items():
            table.add_row(escape(f"{kind} {name}"), str(part.requests), f"{part.share:.1%}")
    return table
