"""When requests come, from where, and how large they are: endless or finite streams in the order of time.

A source's rate [requests/s] stands at its number. Sizes are drawn by whoever makes the stream (`Sizes`), so that a
scenario decides about them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil, isfinite
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from dlbctl.core.errors import ConfigError, UsageError
from dlbctl.core.session import session_of

if TYPE_CHECKING:
    from dlbctl.replay.trace import Row


@dataclass(slots=True)
class Request:
    """One request. source: the number of the place it comes to. max_output_tokens: what its client asks for, or 0.

    block_hashes: of its prompt, where a prefix cache is modelled. session: a hash, as routers have it, or 0.
    """

    at_s: float
    source: int
    prompt_tokens: int = 1
    output_tokens: int = 1
    max_output_tokens: int = 0
    block_hashes: Sequence[int] = ()
    session: int = 0


# Prompt and output tokens of a request, drawn.
Sizes: TypeAlias = Callable[[Random], tuple[int, int]]


def single_tokens(rng: Random) -> tuple[int, int]:  # noqa: ARG001 - a size like others
    """One token in, one out: for servers that do not look at sizes."""
    return 1, 1


def poisson(rng: Random, rates_rps: Sequence[float], sizes: Sizes = single_tokens) -> Iterator[Request]:
    """A Poisson process for each source, without end."""
    return varying(rng, [(0.0, rates_rps)], sizes)


def varying(
    rng: Random, phases: Iterable[tuple[float, Sequence[float]]], sizes: Sizes = single_tokens
) -> Iterator[Request]:
    """Poisson processes whose rates change: each phase is the time of its begin and the rates from then on.

    Exact at the changes, since what is left of an exponential wait is exponential again. UsageError for rates that
    are none.
    """
    steps = sorted(phases, key=lambda phase: phase[0])
    for begins_s, rates_rps in steps:
        if not (isfinite(begins_s) and begins_s >= 0.0):
            raise UsageError(f"a phase of demand begins at {begins_s:g} s: it cannot be before the first request")
        _check(rates_rps)
    return _varying(rng, steps, sizes)


def _varying(rng: Random, steps: Sequence[tuple[float, Sequence[float]]], sizes: Sizes) -> Iterator[Request]:
    ends = [later[0] for later in steps[1:]] + [float("inf")]
    for (now_s, rates_rps), end_s in zip(steps, ends, strict=True):
        total = sum(rates_rps)
        while total > 0.0 and (now_s := now_s + rng.expovariate(total)) < end_s:
            source = _draw(rng, rates_rps, total)
            prompt_tokens, output_tokens = sizes(rng)
            yield Request(now_s, source, prompt_tokens, output_tokens)


def batched(
    rng: Random, rates_rps: Sequence[float], period_s: float, sizes: Sizes = single_tokens
) -> Iterator[Request]:
    """All of a period's requests at its end, as the Mooncake conversations have them every 3 s.

    `period_s` of 60 is the synchronised traffic of clients that all wait for the minute.
    """
    _check(rates_rps)
    if not (isfinite(period_s) and period_s > 0.0):
        raise UsageError(f"a period of {period_s:g} s between batches: must be above 0")
    return _batched(poisson(rng, rates_rps, sizes), period_s)


def _batched(requests: Iterator[Request], period_s: float) -> Iterator[Request]:
    for one in requests:
        at_s = ceil(one.at_s / period_s) * period_s
        yield Request(at_s, one.source, one.prompt_tokens, one.output_tokens)


def of_rows(
    rows: Iterable[Row],
    source_of: Callable[[Row], int],
    *,
    speedup: float = 1.0,
    max_output: int = 0,
    block_tokens: int = 512,
    engine_block_tokens: int = 16,
) -> Iterator[Request]:
    """The rows of a Mooncake trace, so many times as fast; answers are cut at max_output tokens unless it is 0.

    As `dlbctl replay` sends them: a request asks for the length of its answer and names its session. An id stands for a
    block of the trace; its parts are numbered within it, which tells chains apart as well as hashes do, since ids are a
    tree's.
    """
    parts = block_tokens // engine_block_tokens
    for row in rows:
        output_tokens = min(row.output_tokens, max_output) if max_output else row.output_tokens
        whole = row.input_tokens // engine_block_tokens
        hashes = [block * parts + part for block in row.block_ids for part in range(parts)][:whole]
        yield Request(
            row.timestamp_s / speedup,
            source_of(row),
            row.input_tokens,
            output_tokens,
            output_tokens,
            hashes,
            session_of(row.session.encode()),
        )


def of_azure_csv(path: Path, source_of: Callable[[int], int], *, speedup: float = 1.0) -> list[Request]:
    """The rows of an Azure LLM inference trace, its columns TIMESTAMP,ContextTokens,GeneratedTokens.

    source_of: the source of the row at a line. ConfigError says where the file is bad.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            requests = list(_azure_rows(path, csv.reader(file), source_of, speedup))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot read the trace: {error}") from error
    if not requests:
        raise ConfigError(f"{path}: the trace is empty")
    for line, (one, other) in enumerate(pairwise(requests), start=3):
        if other.at_s < one.at_s:
            raise ConfigError(f"{path}:{line}: its time is before the one of the line above")
    return requests


_AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def _azure_rows(
    path: Path, rows: Iterator[list[str]], source_of: Callable[[int], int], speedup: float
) -> Iterator[Request]:
    if next(rows, None) != _AZURE_HEADER:
        raise ConfigError(f"{path}:1: no Azure trace: its first line is {','.join(_AZURE_HEADER)}")
    first: datetime | None = None
    for line, row in enumerate(rows, start=2):
        try:
            time = datetime.fromisoformat(row[0])
            prompt_tokens, output_tokens = int(row[1]), int(row[2])
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{path}:{line}: cannot read {','.join(row)!r}: {error}") from error
        if prompt_tokens < 1 or output_tokens < 1:
            raise ConfigError(f"{path}:{line}: a request has at least one token in and one out")
        if time.tzinfo is None:  # the newer traces say which, the older ones mean the same
            time = time.replace(tzinfo=UTC)
        first = first or time
        yield Request((time - first).total_seconds() / speedup, source_of(line), prompt_tokens, output_tokens)


def _draw(rng: Random, weights: Sequence[float], total: float) -> int:
    left = rng.random() * total
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0.0:
            return index
    return max(index for index, weight in enumerate(weights) if weight > 0.0)


def _check(rates_rps: Sequence[float]) -> None:
    for source, rate_rps in enumerate(rates_rps):
        if not (isfinite(rate_rps) and rate_rps >= 0.0):
            raise UsageError(f"the demand of source {source} is {rate_rps:g} requests/s: it cannot be negative")
