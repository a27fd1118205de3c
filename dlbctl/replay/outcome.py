"""What is written down of each request: a line of requests.jsonl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from dlbctl.replay.answer import Answer
    from dlbctl.replay.trace import Row
    from dlbctl.replay.wire import Request

Result = Literal["ok", "failed", "interrupted"]
INTERRUPTED = "interrupted"


class Outcome(msgspec.Struct, frozen=True):
    """One request's record. Instants are seconds after the run's start; None: it never came to that.

    status is HTTP's; error the reason of a failure, detail what was seen of it. moved counts targets that
    refused the connection before one took it; reconnected marks a pooled connection that had died.
    """

    line: int
    result: Result
    scheduled_s: float
    sent_s: float | None
    first_byte_s: float | None
    first_token_s: float | None
    end_s: float
    model: str
    session: str
    input_tokens: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    target: str | None
    cell: str | None
    server: str | None
    status: int | None
    error: str | None
    detail: str
    request_id: str
    moved: int
    reconnected: bool

    @property
    def lag_s(self) -> float | None:
        """How long after its instant it was sent [s]."""
        return None if self.sent_s is None else self.sent_s - self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """From the scheduled instant to the first token [s]: a late send does not flatter."""
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """From the scheduled instant to the end [s]."""
        return self.end_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Time for each output token after the first [s]."""
        if self.first_token_s is None or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.completion_tokens - 1)


def outcome(row: Row, request: Request, answer: Answer, *, scheduled_s: float, origin_s: float) -> Outcome:
    """The record of an ended request. origin_s: the clock's reading at the run's start."""
    assert answer.end_s is not None, f"line {row.line} has not ended"
    headers = answer.headers

    def since_origin(instant_s: float | None) -> float | None:
        return None if instant_s is None else round(instant_s - origin_s, 6)

    return Outcome(
        line=row.line,
        result=_result(answer),
        scheduled_s=round(scheduled_s, 6),
        sent_s=since_origin(answer.sent_s),
        first_byte_s=since_origin(answer.first_byte_s),
        first_token_s=since_origin(answer.first_token_s),
        end_s=round(answer.end_s - origin_s, 6),
        model=request.model,
        session=row.session,
        input_tokens=row.input_tokens,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        target=answer.target,
        cell=_text(headers.get(b"x-dlb-cell")),
        server=_text(headers.get(b"x-dlb-server")),
        status=answer.status,
        error=answer.failure,
        detail=answer.detail,
        request_id=_text(headers.get(b"x-request-id")) or request.request_id,
        moved=answer.moved,
        reconnected=answer.reconnected,
    )


def _result(answer: Answer) -> Result:
    if answer.ok:
        return "ok"
    return "interrupted" if answer.failure == INTERRUPTED else "failed"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
