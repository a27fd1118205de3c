"""One parsed request of a client or peer, and the checks an HTTP parser leaves to us."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from dlbctl.router.http1 import HOP_BY_HOP, PEER_PREFIX, Headers


class Refusal(NamedTuple):
    """Why a request is answered here with an error, and with which one."""

    status: int
    code: str
    message: str


class HttpLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may send, and how long it may take over it. Bytes and seconds."""

    header_bytes: int = 32 * 1024
    header_fields: int = 100
    body_bytes: int = 64 * 1024 * 1024
    replay_bytes: int = 1024 * 1024
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0


class Request:
    """The head as it came in, header names in lower case; the body once it is whole.

    received_s: when it was whole. refusal: set when the request must not be forwarded.
    """

    __slots__ = (
        "body",
        "content_length",
        "content_type",
        "expect_continue",
        "headers",
        "hosts",
        "id",
        "keep_alive",
        "method",
        "received_s",
        "refusal",
        "size",
        "transfer_encodings",
        "url",
        "version",
    )

    def __init__(self) -> None:
        self.method = b""
        self.url = b""
        self.version = "1.1"
        self.headers: Headers = []
        self.body = b""
        self.size = 0
        self.keep_alive = True
        self.content_length = 0
        self.content_type = b""
        self.expect_continue = False
        self.hosts = 0
        self.transfer_encodings: list[bytes] = []
        self.id = b""
        self.received_s = 0.0
        self.refusal: Refusal | None = None

    def __repr__(self) -> str:
        return f"<Request {self.method.decode()} {self.path.decode('latin-1')} {len(self.headers)} headers>"

    @property
    def path(self) -> bytes:
        """The URL without its query."""
        return self.url.partition(b"?")[0]

    def add_header(self, name: bytes, value: bytes) -> None:
        """Take a header in; what this hop itself needs to know is picked out on the way."""
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-type":
            self.content_type = value.lower()
        elif name == b"host":
            self.hosts += 1
        elif name == b"content-length":
            self.content_length = int(value) if value.isdigit() else 0
        elif name == b"transfer-encoding":
            self.transfer_encodings.append(value.strip().lower())
        elif name == b"expect":
            self.expect_continue = value.lower() == b"100-continue"
        elif name == b"x-request-id":
            self.id = value

    def header(self, name: bytes) -> bytes:
        """A header's value, empty when it is absent."""
        return next((value for key, value in self.headers if key == name), b"")

    def head_fault(self, limits: HttpLimits) -> Refusal | None:
        """What is wrong with the head that llhttp lets through; None when nothing is."""
        if self.hosts > 1 or (self.hosts == 0 and self.version == "1.1"):
            return Refusal(400, "bad_host", "a request needs exactly one Host header")
        if self.method == b"CONNECT":
            return Refusal(405, "method_not_allowed", "CONNECT is not offered here")
        if self.transfer_encodings and self.transfer_encodings != [b"chunked"]:
            return Refusal(400, "bad_transfer_encoding", "the only transfer coding understood is chunked")
        if self.content_length > limits.body_bytes:
            return self.too_large(limits)
        return None

    @staticmethod
    def too_large(limits: HttpLimits) -> Refusal:
        """The body is larger than we take."""
        return Refusal(413, "body_too_large", f"the body is larger than {limits.body_bytes} bytes")

    def forwarded_headers(self, client: bytes) -> bytes:
        """The headers that travel on, as header lines; x-forwarded-for gains the client's address."""
        lines = []
        forwarded = client
        for name, value in self.headers:
            if name in HOP_BY_HOP or name.startswith(PEER_PREFIX):
                continue
            if name == b"x-forwarded-for":
                forwarded = value + b", " + client
            elif name != b"x-request-id":
                lines.append(b"%b: %b\r\n" % (name, value))
        if forwarded:
            lines.append(b"x-forwarded-for: %b\r\n" % forwarded)
        return b"".join(lines)
