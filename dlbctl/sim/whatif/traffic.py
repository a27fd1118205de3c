"""A trace as the requests that come to a fleet: which, how fast, and to which root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from dlbctl.core.errors import UsageError
from dlbctl.engine.profile import Profile
from dlbctl.engine.prompt import chat_text
from dlbctl.replay.selection import Selection, select
from dlbctl.replay.targets import Target, ranked
from dlbctl.replay.trace import LeftOut, Row, Trace, read_trace
from dlbctl.sim.arrivals import Request, of_azure_csv, of_rows

# What the template of a chat adds to a prompt, as the embedded engine counts it: `dlbctl replay` sends chats.
CHAT_TOKENS = len(chat_text([("user", "")]).split())


@dataclass(frozen=True, slots=True)
class Traffic:
    """The rows that are sent, and how. speedup: so many times as fast as recorded. max_output: 0 for no limit."""

    rows: tuple[Row, ...]
    left_out: LeftOut
    speedup: float
    max_output: int
    block_tokens: int

    @property
    def span_s(self) -> float:
        """From the first to the last request."""
        return self.rows[-1].timestamp_s / self.speedup

    @property
    def rate_rps(self) -> float:
        """Requests a second; of a single instant, none can be told."""
        return len(self.rows) / self.span_s if self.span_s > 0.0 else 0.0

    @property
    def prompt_tokens(self) -> float:
        """Of the mean request."""
        return fmean(row.input_tokens for row in self.rows)

    @property
    def output_tokens(self) -> float:
        """Of the mean request."""
        return fmean(self.answer_tokens(row) for row in self.rows)

    def answer_tokens(self, row: Row) -> int:
        """How long the answer to a row is."""
        return min(row.output_tokens, self.max_output) if self.max_output else row.output_tokens

    def fitting(self, profiles: Sequence[Profile]) -> Traffic:
        """Without the rows that are too long for one of these engines, which would refuse them."""
        most = min((profile.max_model_tokens for profile in profiles), default=0)
        fits = tuple(row for row in self.rows if not most or row.input_tokens + self.answer_tokens(row) <= most)
        if not fits:
            raise UsageError(f"every request of the trace is longer than the {most} tokens that an engine takes")
        return replace(self, rows=fits)

    def arrivals(
        self, sources: Sequence[str], weights: Sequence[float], *, demand: float, engine_block_tokens: int
    ) -> Iterator[Request]:
        """The requests, spread over the sources by session as `dlbctl replay` spreads them over targets of these names.

        engine_block_tokens: of the prefix caches; 0 for none. demand: the same requests so many times as fast.
        """
        targets = tuple(
            Target(name, "http", name, 80, weight=weight)
            for name, weight in zip(sources, weights, strict=True)
            if weight > 0.0
        )
        numbers = {name: number for number, name in enumerate(sources)}
        rows = self.rows if engine_block_tokens else [replace(row, block_ids=()) for row in self.rows]
        return of_rows(
            rows,
            lambda row: numbers[ranked(targets, row.session)[0].name],
            speedup=self.speedup * demand,
            max_output=self.max_output,
            block_tokens=self.block_tokens,
            engine_block_tokens=engine_block_tokens or self.block_tokens,
        )


def read_traffic(path: Path, selection: Selection, *, speedup: float, max_output: int, block_tokens: int) -> Traffic:
    """Read a Mooncake or an Azure trace. ConfigError for a file that is neither, UsageError when nothing is left."""
    trace = _of_azure(path) if path.suffix == ".csv" else read_trace(path, block_tokens=block_tokens)
    rows = select(trace, selection)
    if not rows:
        raise UsageError(f"{path}: none of its {trace.total} rows is left to simulate")
    rows = tuple(replace(row, input_tokens=row.input_tokens + CHAT_TOKENS) for row in rows)
    return Traffic(rows, trace.left_out, speedup, max_output, block_tokens)


def _of_azure(path: Path) -> Trace:
    """Each row is a session of its own: the trace knows none."""
    requests = of_azure_csv(path, lambda _: 0)
    rows = tuple(
        Row(line, one.at_s, one.prompt_tokens, one.output_tokens, (), str(line))
        for line, one in enumerate(requests, start=2)
    )
    return Trace(rows, LeftOut(), len(rows))
