"""The bytes of a request: HTTP head and OpenAI body around a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from dlbctl import __version__

if TYPE_CHECKING:
    from dlbctl.replay.prompts import PromptBuilder
    from dlbctl.replay.targets import Target
    from dlbctl.replay.trace import Row

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request ready to go to any target: only the first line and Host depend on which."""

    path: str
    rest: bytes
    model: str
    request_id: str

    def to(self, target: Target) -> tuple[bytes, ...]:
        """The bytes to write."""
        head = f"POST {target.base_path}{self.path} HTTP/1.1\r\nhost: {target.host_header}\r\n"
        return head.encode(), self.rest


@dataclass(frozen=True, slots=True)
class RequestWriter:
    """Turns rows into requests. default_model serves rows that name none; forced_model replaces all."""

    prompts: PromptBuilder
    run_id: str
    default_model: str | None = None
    forced_model: str | None = None
    endpoint: Endpoint = "chat"
    stream: bool = True
    max_output_tokens: int | None = None
    api_key: str | None = None

    def model(self, row: Row) -> str:
        """The model a row's request names."""
        model = self.forced_model or row.model or self.default_model
        assert model is not None, f"line {row.line} has no model"
        return model

    def write(self, row: Row) -> Request:
        """The request of a row."""
        model = self.model(row)
        body = self._body(row, model)
        request_id = f"{self.run_id}-{row.line}"
        head = (
            f"user-agent: dlbctl/{__version__}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-session-id: {row.session}\r\n"
            f"x-request-id: {request_id}\r\n"
            f"{self._authorization()}\r\n"
        )
        return Request(_PATHS[self.endpoint], head.encode() + body, model, request_id)

    def _authorization(self) -> str:
        return f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""

    def _body(self, row: Row, model: str) -> bytes:
        # By hand: the prompt is most of it, and its words need no escaping.
        prompt = self.prompts.build(row)
        if self.endpoint == "chat":
            prompt = b'"messages":[{"role":"user","content":"%b"}]' % prompt
        else:
            prompt = b'"prompt":"%b"' % prompt
        cap = self.max_output_tokens
        output = row.output_tokens if cap is None else min(row.output_tokens, cap)
        stream = b'"stream":true,"stream_options":{"include_usage":true}' if self.stream else b'"stream":false'
        return b'{"model":%b,%b,"max_tokens":%d,%b,"ignore_eos":true,"temperature":0}' % (
            msgspec.json.encode(model), prompt, output, stream,
        )  # fmt: skip
