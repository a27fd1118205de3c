"""What routing needs from a request's body, read without decoding the rest of it."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dlbctl.router.fields import DECODER

_FORM_MODEL: Final = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n')


class BadBodyError(Exception):
    """The body cannot be read; the message is for the client."""


class Facts:
    """model: empty when the request names none. max_output_tokens: its own cap on its answer, 0 for none.

    session: the key under which it wants its prompt cached, as it is spelled; empty for none.
    """

    def __init__(self, model: str = "", max_output_tokens: int = 0, session: bytes = b"") -> None:
        self.model = model
        self.max_output_tokens = max_output_tokens
        self.session = session

    def __repr__(self) -> str:
        return f"<Facts {self.model!r}, at most {self.max_output_tokens} tokens>"


def read_facts(body: bytes, content_type: bytes) -> Facts:
    """Read a body. Raises BadBodyError for broken JSON or a model that is no text."""
    if content_type.startswith(b"multipart/form-data"):
        found = _FORM_MODEL.search(body)
        return Facts(found[1].decode("utf-8", "replace") if found else "")
    if not body or not (content_type.find(b"json") >= 0 or body.lstrip(b" \t\r\n").startswith(b"{")):
        return Facts()
    try:
        fields = DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBodyError(f"the request body is not valid JSON: {error}") from error
    if not isinstance(fields.model, str):
        raise BadBodyError("`model` must be a string")
    cap = _cap(fields.max_completion_tokens) or _cap(fields.max_tokens)
    return Facts(fields.model, cap, _text(bytes(fields.prompt_cache_key)))


def _cap(limit: Any) -> int:
    return limit if isinstance(limit, int) and limit > 0 else 0


def _text(raw: bytes) -> bytes:
    """What stands between the quotes of a string; empty for other values."""
    return raw[1:-1] if raw.startswith(b'"') else b""
