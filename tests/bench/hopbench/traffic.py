"""The requests and answers of the benchmark, byte by byte: both ends compute them from a tag.

A tag is a letter for the kind and seven digits for the request. The client writes it at the end of the
prompt, the upstream answers with it, and so an answer that went to the wrong client is told from a right one.
"""

from __future__ import annotations

from enum import StrEnum

MODEL = "bench"
CHUNKS = 100  # content events of a stream; usage and [DONE] follow them
PACE_S = 0.010
BODY_BYTES = 1024
CONVERSATIONS = 64  # distinct prompt beginnings, so that prefix affinity has something to do
PATH = b"/v1/chat/completions"

_HEAD = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Kind(StrEnum):
    """How the upstream answers; the value is the tag's letter."""

    JSON = "j"
    PACED = "p"  # SSE, an event every PACE_S
    FAST = "f"  # SSE, as fast as the connection takes it

    @property
    def streams(self) -> bool:
        return self is not Kind.JSON


def tag(kind: Kind, number: int) -> bytes:
    return b"%b%07d" % (kind.value.encode(), number)


def request(kind: Kind, number: int) -> bytes:
    """A whole chat request with a body of BODY_BYTES."""
    start = b'{"model":"%b","max_tokens":%d,"stream":%b,"messages":[{"role":"user","content":"' % (
        MODEL.encode(),
        CHUNKS,
        b"true" if kind.streams else b"false",
    )
    start += b"This is conversation %02d. " % (number % CONVERSATIONS)
    end = b' #%b"}]}' % tag(kind, number)
    filler = (b"hello world " * (BODY_BYTES // 12))[: BODY_BYTES - len(start) - len(end)]
    return _HEAD % (PATH, BODY_BYTES) + start + filler + end


def tag_in(body: bytes) -> bytes:
    """The tag of a request's body, wherever a proxy's JSON encoder has moved it."""
    start = body.rindex(b"#") + 1
    return body[start : start + 8]


_USAGE = b'"usage":{"prompt_tokens":256,"completion_tokens":%d,"total_tokens":%d}' % (CHUNKS, 256 + CHUNKS)
_COMPLETION = (
    b'{"id":"%b","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],' + _USAGE + b"}"
)
_CHUNK = b'data: {"id":"%b","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
_CONTENT = (
    _CHUNK + b'"choices":[{"index":0,"delta":{"content":" token%02d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_LAST = _CHUNK + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],' + _USAGE + b"}\n\n"


def completion(mark: bytes) -> bytes:
    """The JSON answer to the request with this tag."""
    return _COMPLETION % mark


def events(mark: bytes) -> list[bytes]:
    """The stream that answers the request with this tag: each element is one SSE event."""
    content = [_CONTENT % (mark, index) for index in range(CHUNKS)]
    return [*content, _LAST % mark, b"data: [DONE]\n\n"]


def answer(kind: Kind, number: int) -> bytes:
    """The complete body that a client must receive."""
    mark = tag(kind, number)
    return b"".join(events(mark)) if kind.streams else completion(mark)
