"""HTTP/1.1 as both sides of the data path need it: which headers travel, how our own answers look."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec

Headers = list[tuple[bytes, bytes]]

# Between one hop and the next only, or set anew by this hop. A header named in `Connection` is not dropped
# for that: a client must not be able to remove what a proxy added (traefik#8319).
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"host",
        b"content-length",
        b"expect",
    }
)
# Ours alone: taken from authenticated peers, dropped from everyone else, never shown to a client.
PEER_PREFIX: Final = b"dlb-"

REASONS: Final[dict[int, bytes]] = {status.value: status.phrase.encode() for status in HTTPStatus}


def answer(status: int, body: bytes, *, content_type: bytes = b"application/json", extra: bytes = b"") -> bytes:
    """A complete answer of our own. extra: further header lines, each ending in CRLF."""
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
        status,
        REASONS.get(status, b"-"),
        content_type,
        extra,
        len(body),
        body,
    )


def error_body(status: int, code: str, message: str) -> bytes:
    """An error in the shape OpenAI's clients parse."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
