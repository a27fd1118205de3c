"""What routing needs from a request's body, read without decoding the rest of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec


class BadBodyError(Exception):
    """The body cannot be read; the message is for the client."""


class Facts(msgspec.Struct):
    """The few fields of an OpenAI-style body that routing uses. Everything else is the engine's business."""

    model: Any = ""
    max_tokens: Any = None
    max_completion_tokens: Any = None

    @property
    def max_output_tokens(self) -> int:
        """The request's own cap on its answer, 0 for none."""
        cap = self.max_completion_tokens
        if not (isinstance(cap, int) and cap > 0):
            cap = self.max_tokens
        return cap if isinstance(cap, int) and cap > 0 else 0


_DECODER = msgspec.json.Decoder(Facts)
_FORM_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n')


def read_facts(body: bytes, content_type: bytes) -> Facts:
    """Read a body. Raises BadBodyError for broken JSON or a model that is no text."""
    if content_type.startswith(b"multipart/form-data"):
        found = _FORM_MODEL.search(body)
        return Facts(model=found[1].decode("utf-8", "replace") if found else "")
    if not body or not (b"json" in content_type or body.lstrip(b" \t\r\n")[:1] == b"{"):
        return Facts()
    try:
        facts = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBodyError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(facts.model, str):
        raise BadBodyError("`model` must be a string")
    return facts
