"""One parsed request of a client or peer, and the checks an HTTP parser leaves to us."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from dlbctl.router.http1 import HOP_BY_HOP, PEER_PREFIX, Headers

if TYPE_CHECKING:
    from dlbctl.router.limits import HttpLimits

# `uri-host [ ":" port ]` of RFC 9110 section 7.2, or nothing; wider in what an address in brackets may be.
_HOST: Final = re.compile(rb"(?:(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)?")
# What is looked at or set anew by this hop; every other header travels on as it came.
OF_INTEREST: Final = HOP_BY_HOP | {
    b"content-type",
    b"x-request-id",
    b"x-forwarded-for",
    b"x-dlb-priority",
    b"x-dlb-deadline",
    b"x-session-id",
    b"dlb-priority",
    b"dlb-deadline",
}


class Refusal(NamedTuple):
    """Why a request is answered here with an error, and with which one."""

    status: int
    code: str
    message: str
    retry_after_s: int = 0


class Request:
    """The head as it came in, header names in lower case; the body once it is whole.

    received_s: when it was whole. refusal: set when the request must not be forwarded.
    The defaults stand here and not in an initialiser: most of them are never changed.
    """

    method = b""
    url = b""
    version = "1.1"
    body = b""
    size = 0  # of the body so far
    held = 0  # bytes of it that the router counts as kept
    keep_alive = True
    content_length = 0
    content_type = b""
    chunked = False
    expect_continue = False
    id = b""
    passed_on = b""  # the header lines that travel on
    forwarded_for = b""  # who it was forwarded for before, each with a comma behind it
    priority = b""  # how urgent it is, as its sender says
    patience = b""  # seconds its sender will wait for it to begin
    session = b""  # the name of its client's session
    received_s = 0.0
    refusal: Refusal | None = None

    def __init__(self) -> None:
        self.headers: Headers = []

    def __repr__(self) -> str:
        return f"<Request {self.method.decode()} {self.path.decode('latin-1')} {len(self.headers)} headers>"

    @property
    def path(self) -> bytes:
        """The URL without its query."""
        return self.url.partition(b"?")[0]

    def header(self, name: bytes) -> bytes:
        """A header's value, empty when it is absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""

    def read_head(self, limits: HttpLimits) -> Refusal | None:
        """Pick out what this hop needs to know; what is wrong that llhttp lets through, or None."""
        if not self.url.startswith(b"/"):
            self.url = _origin_form(self.url)
        hosts = 0
        host = b""
        codings = []
        passed_on = []
        for name, value in self.headers:
            if name not in OF_INTEREST:
                if not name.startswith(PEER_PREFIX):
                    passed_on.append(b"%b: %b\r\n" % (name, value))
            elif name == b"host":
                hosts += 1
                host = value
            elif name == b"content-type":
                self.content_type = value.lower()
                passed_on.append(b"%b: %b\r\n" % (name, value))
            elif name == b"content-length":
                self.content_length = int(value)  # the parser has seen to it that it is a number
            elif name == b"x-session-id":
                self.session = value
                passed_on.append(b"%b: %b\r\n" % (name, value))
            elif name == b"x-request-id":
                self.id = value
            elif name == b"x-forwarded-for":
                self.forwarded_for += value + b", "
            elif name.endswith(b"dlb-priority"):
                self.priority = value
            elif name.endswith(b"dlb-deadline"):
                self.patience = value
            elif name == b"transfer-encoding":
                codings.append(value.strip().lower())
            elif name == b"expect":
                self.expect_continue = value.lower() == b"100-continue"
        self.passed_on = b"".join(passed_on)
        self.chunked = bool(codings)
        if hosts > 1 or (hosts == 0 and self.version == "1.1"):
            return Refusal(400, "bad_host", "a request needs exactly one Host header")
        if _HOST.fullmatch(host) is None:
            return Refusal(400, "bad_host", "the Host header is not host or host:port")
        if self.method == b"CONNECT":
            return Refusal(405, "method_not_allowed", "CONNECT is not offered here")
        if codings and codings != [b"chunked"]:
            return Refusal(400, "bad_transfer_encoding", "the only transfer coding understood is chunked")
        if len(self.headers) > limits.header_fields:
            return Refusal(431, "headers_too_large", f"more than {limits.header_fields} header fields")
        if self.content_length > limits.body_bytes:
            return self.too_large(limits)
        return None

    def check_head_size(self, limits: HttpLimits) -> Refusal | None:
        """Refuse a head that is larger than we take; asked only when so much came that it may be."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return self.head_too_large(limits) if size > limits.header_bytes else None

    @staticmethod
    def head_too_large(limits: HttpLimits) -> Refusal:
        """The head is larger than we take."""
        return Refusal(431, "headers_too_large", f"the head is larger than {limits.header_bytes} bytes")

    @staticmethod
    def too_large(limits: HttpLimits) -> Refusal:
        """The body is larger than we take."""
        return Refusal(413, "body_too_large", f"the body is larger than {limits.body_bytes} bytes")

    @staticmethod
    def no_memory(limits: HttpLimits) -> Refusal:
        """The bodies of all requests together are more than we keep."""
        message = f"requests that wait for their answers fill {limits.total_body_bytes} bytes already"
        return Refusal(503, "overloaded", message, 1)


def _origin_form(url: bytes) -> bytes:
    """`http://host/path` as `/path`: a server has to take both (RFC 9112 section 3.2.2)."""
    scheme, separator, rest = url.partition(b"://")
    if scheme.lower() not in {b"http", b"https"} or not separator:
        return url
    _, slash, path = rest.partition(b"/")
    return slash + path if slash else b"/"
