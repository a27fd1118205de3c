"""What is decoded of a request's body. A module of its own: structures cannot be defined in a compiled one."""

from __future__ import annotations

from typing import Any

import msgspec


class Fields(msgspec.Struct):
    """The few fields of an OpenAI-style body that routing uses. Everything else is the engine's business."""

    model: Any = ""
    max_tokens: Any = None
    max_completion_tokens: Any = None
    prompt_cache_key: msgspec.Raw = msgspec.Raw()


DECODER = msgspec.json.Decoder(Fields)
