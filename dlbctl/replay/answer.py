"""What one request's answer was: its instants, its usage, and how it failed if it did.

Pure: a connection tells it what came and when. A stream is whole only with `data: [DONE]` in an event of its
own and a proper end of the HTTP body; anything less is a failed request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dlbctl.replay.sse import SseSplitter

if TYPE_CHECKING:
    from collections.abc import Mapping

_DONE = b"[DONE]"
_NULL = b"null"
# A failed answer's body is kept for its message alone.
_KEPT_ERROR_BYTES = 65_536


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The tokens an engine says it handled."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Text | None = None

    def has_text(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(_NULL)


class _ErrorObject(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _ErrorObject | str


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_error = msgspec.json.Decoder(_ErrorBody).decode


class Answer:
    """One request's answer while it arrives. Instants are clock readings [s]; None: it never came to that."""

    __slots__ = (
        "_body", "_done", "_events", "_streamed", "_wanted_stream",
        "cached_tokens", "completion_tokens", "detail", "end_s", "failure", "first_byte_s", "first_token_s",
        "gaps_s", "headers", "last_token_s", "moved", "prompt_tokens", "reconnected", "sent_s", "status",
        "target",
    )  # fmt: skip

    def __init__(self, *, stream: bool) -> None:
        self._wanted_stream = stream
        self.target: str | None = None
        self.sent_s: float | None = None
        self.moved = 0
        self.reconnected = False
        self.restart()

    def restart(self) -> None:
        """Forget what came so far, and keep when the request was first sent: a second try is no new timer."""
        self._streamed = self._done = False
        self._events = SseSplitter()
        self._body = bytearray()
        self.status: int | None = None
        self.headers: Mapping[bytes, bytes] = {}
        self.first_byte_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.end_s: float | None = None
        self.gaps_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.failure: str | None = None
        self.detail = ""

    def __repr__(self) -> str:
        return f"<Answer {self.failure or self.status or 'pending'} from {self.target}>"

    @property
    def ok(self) -> bool:
        """Whether it ended, and well."""
        return self.end_s is not None and self.failure is None

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Status and headers (names in lower case) are here."""
        self.status = status
        self.headers = headers
        self._streamed = status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream")

    def receive(self, data: bytes, now_s: float) -> None:
        """A piece of the body."""
        if self.first_byte_s is None:
            self.first_byte_s = now_s
        if self._streamed:
            self._take_events(self._events.feed(data), now_s)
        elif self.status == 200 or len(self._body) < _KEPT_ERROR_BYTES:
            self._body += data

    def complete(self, now_s: float) -> None:
        """The body ended as HTTP says it should; now decide whether that was a whole answer."""
        self.end_s = now_s
        if self.status != 200:
            self._note_failure(f"http-{self.status}", self._error_message())
        elif self._streamed:
            self._take_events(self._events.close(), now_s)
            if not self._done:
                self._note_failure("truncated", "the stream ended without [DONE]")
        elif self._wanted_stream:
            self._note_failure("not-a-stream", "a stream was asked for, and one body came")
        else:
            self._take_document()

    def fail(self, reason: str, now_s: float, detail: str = "") -> None:
        """The request ended as a failure; the first reason stands."""
        self.end_s = now_s
        self._note_failure(reason, detail)

    def _note_failure(self, reason: str, detail: str) -> None:
        if self.failure is None:
            self.failure, self.detail = reason, detail

    def _take_events(self, events: list[bytes], now_s: float) -> None:
        for data in events:
            if self._done:
                return
            if data == _DONE:
                self._done = True
            else:
                self._take_event(data, now_s)

    def _take_event(self, data: bytes, now_s: float) -> None:
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._note_failure("bad-stream", str(error))
            return
        self._take_usage_and_error(event)
        if event.choices and any(choice.has_text() for choice in event.choices):
            if self.last_token_s is None:
                self.first_token_s = now_s
            else:
                self.gaps_s.append(now_s - self.last_token_s)
            self.last_token_s = now_s

    def _take_document(self) -> None:
        try:
            document = _decode_event(bytes(self._body))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._note_failure("bad-json", str(error))
            return
        self._take_usage_and_error(document)

    def _take_usage_and_error(self, event: _Event) -> None:
        if event.usage is not None:
            usage = event.usage
            self.prompt_tokens = usage.prompt_tokens
            self.completion_tokens = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        error = bytes(event.error)
        if error != _NULL:
            self._note_failure("stream-error", error[:200].decode(errors="replace"))

    def _error_message(self) -> str:
        try:
            error = _decode_error(bytes(self._body)).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return bytes(self._body[:200]).decode(errors="replace").strip()
        return error if isinstance(error, str) else error.message
