"""The two forms of an answer, whole and streamed, fed by the runner and written to an exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from dlbctl.engine import openai_api, wording

if TYPE_CHECKING:
    from dlbctl.engine.connection import Exchange
    from dlbctl.engine.model import Sequence


@dataclass(frozen=True, slots=True)
class Form:
    """What is the same in every piece of one answer."""

    answer_id: str
    created: int
    """Unix time, seconds."""
    model: str
    chat: bool
    finish_reason: str
    variant: int
    """Which of the possible texts; answers differ."""

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """The object around choices."""
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def text_choice(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """A choice of a chunk, or of a whole text completion."""
        shape = {"delta": {"content": text}} if self.chat else {"text": text}
        return {"index": 0, **shape, "logprobs": None, "finish_reason": finish_reason}

    def end_choice(self) -> dict[str, Any]:
        """The choice of the chunk that ends a stream."""
        shape: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        return {"index": 0, **shape, "logprobs": None, "finish_reason": self.finish_reason}

    def whole_choice(self, text: str) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        if not self.chat:
            return self.text_choice(text, self.finish_reason)
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}


class WholeAnswer:
    """An answer sent when it is complete."""

    interval = 0

    def __init__(self, exchange: Exchange, form: Form, sequence: Sequence) -> None:
        self._sequence = sequence
        self._exchange = exchange
        self._form = form

    def on_tokens(self, count: int) -> None:
        """Not until the end."""

    def on_finished(self) -> None:
        """Send it."""
        sequence, form = self._sequence, self._form
        text = wording.text(0, sequence.output_tokens, form.variant).decode()
        body = form.envelope([form.whole_choice(text)], chunk=False)
        body["usage"] = _usage(sequence)
        self._exchange.reply(200, "application/json", msgspec.json.encode(body))


class StreamedAnswer:
    """An answer sent as server-sent events, `interval` tokens each.

    While the client reads too slowly nothing is written or kept: tokens are a count, their text a
    function of it.
    """

    def __init__(
        self, exchange: Exchange, form: Form, sequence: Sequence, *, interval: int, include_usage: bool
    ) -> None:
        self.interval = interval
        self._sequence = sequence
        self._exchange = exchange
        self._form = form
        self._include_usage = include_usage
        self._made = 0
        self._sent = 0
        self._finished = False
        self._before, self._after = _around_text(form)
        exchange.on_writable = self._catch_up
        exchange.start_stream("text/event-stream; charset=utf-8")

    def on_tokens(self, count: int) -> None:
        """More tokens are there."""
        self._made = count
        if self._exchange.writable:
            self._exchange.send(self._unsent())

    def on_finished(self) -> None:
        """The last tokens are there."""
        self._made = self._sequence.output_tokens
        self._finished = True
        if self._exchange.writable:
            self._exchange.finish(self._unsent() + self._closing())

    def _catch_up(self) -> None:
        if self._finished:
            self._exchange.finish(self._unsent() + self._closing())
        elif self._made > self._sent:
            self._exchange.send(self._unsent())

    def _unsent(self) -> bytes:
        """The events of the tokens made and not sent."""
        opening = b"" if self._sent else self._opening()
        if self._made == self._sent:
            return opening
        text = wording.text(self._sent, self._made, self._form.variant)
        self._sent = self._made
        return opening + self._before + text + self._after

    def _opening(self) -> bytes:
        if not self._form.chat:
            return b""
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return _event(self._form.envelope([role], chunk=True))

    def _closing(self) -> bytes:
        form = self._form
        events = _event(form.envelope([form.end_choice()], chunk=True))
        if self._include_usage:
            events += _event({**form.envelope([], chunk=True), "usage": _usage(self._sequence)})
        return events + b"data: [DONE]\n\n"


def _around_text(form: Form) -> tuple[bytes, bytes]:
    """The bytes before and after the text of an event, made once; the text needs no escaping."""
    mark = "<text>"
    event = _event(form.envelope([form.text_choice(mark, None)], chunk=True))
    before, after = event.rsplit(mark.encode(), 1)
    return before, after


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def _usage(sequence: Sequence) -> dict[str, Any]:
    return openai_api.usage(sequence.prompt_tokens, sequence.output_tokens, sequence.cached_tokens)
