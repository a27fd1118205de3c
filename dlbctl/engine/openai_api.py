"""OpenAI's wire format as far as an engine needs it: request bodies in, answer and error bodies out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dlbctl.engine import prompt
from dlbctl.engine.prompt import Prompt

Tokens = Annotated[int, Meta(ge=1)]


class ApiError(Exception):
    """A request that is answered with an error, in OpenAI's shape."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON that vLLM sends: `type` names the kind, `code` repeats the status."""
        error = {
            "message": self.message,
            "type": _KINDS.get(self.status, "InternalServerError"),
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    503: "ServiceUnavailableError",
}


class _Part(Struct):
    type: str
    text: str = ""


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return " ".join(part.text for part in self.content)
        return self.content or ""


class _StreamOptions(Struct):
    include_usage: bool = False


class _Common(Struct, kw_only=True):
    """What both kinds of requests have; fields not named here are ignored, `stop` among them."""

    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = False
    n: int | None = 1

    @property
    def output_limit(self) -> int | None:
        """Tokens the client wants at most."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Common, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[_Message], Meta(min_length=1)]

    def prompt_of(self, block_tokens: int) -> Prompt:
        """The conversation as ChatML."""
        return prompt.from_text(prompt.chat_text((m.role, m.text()) for m in self.messages), block_tokens)


class CompletionRequest(_Common, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | list[Any]

    def prompt_of(self, block_tokens: int) -> Prompt:
        """One text or one list of token ids; ApiError for anything else."""
        if isinstance(self.prompt, str):
            return prompt.from_text(self.prompt, block_tokens)
        if set(map(type, self.prompt)) == {int} and 0 <= min(self.prompt) <= max(self.prompt) < 2**31:
            return prompt.from_ids(self.prompt, block_tokens)
        raise ApiError(400, "prompt must be one text or one list of token ids, not several", param="prompt")


Generation = ChatRequest | CompletionRequest


def decode(kind: type[Generation], body: bytes) -> Generation:
    """A request from its JSON; ApiError 400 says what is wrong and where."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if request.n not in (None, 1):
        raise ApiError(400, "n other than 1 is not supported", param="n")
    return request


def usage(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The `usage` object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def models(name: str, created: int, max_model_tokens: int) -> bytes:
    """The answer to /v1/models."""
    card = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "dlbctl",
        "root": name,
        "max_model_len": max_model_tokens,
    }
    return msgspec.json.encode({"object": "list", "data": [card]})
