"""Which rows of a trace a run sends: a window in time, a cap on length, a cap on rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.replay.trace import Row, Trace


@dataclass(frozen=True, slots=True)
class Selection:
    """Limits on the rows to send; start_s and end_s are in the trace's own seconds, end excluded."""

    start_s: float = 0.0
    end_s: float | None = None
    limit: int | None = None
    max_input_tokens: int | None = None

    def refusal(self, row: Row, kept: int) -> str | None:
        """Why this row is not sent when `kept` rows before it are, or None."""
        if row.timestamp_s < self.start_s:
            return "before-start"
        if self.end_s is not None and row.timestamp_s >= self.end_s:
            return "after-end"
        if self.max_input_tokens is not None and row.input_tokens > self.max_input_tokens:
            return "over-max-input"
        if self.limit is not None and kept >= self.limit:
            return "over-limit"
        return None


def select(trace: Trace, selection: Selection) -> tuple[Row, ...]:
    """The rows to send, their clock at 0 where the window starts; the others join `trace.left_out`."""
    kept: list[Row] = []
    for row in trace.rows:
        reason = selection.refusal(row, len(kept))
        if reason is None:
            kept.append(replace(row, timestamp_s=row.timestamp_s - selection.start_s))
        else:
            trace.left_out.add(reason, row.line)
    return tuple(kept)
