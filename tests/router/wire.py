"""Bytes on the wire as tests read them: strict, and independent of the parser under test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

Fields = list[tuple[bytes, bytes]]


async def read_head(reader: asyncio.StreamReader) -> bytes:
    """Bytes up to and with the empty line."""
    return await reader.readuntil(b"\r\n\r\n")


def split_head(head: bytes) -> tuple[bytes, Fields]:
    """First line and fields, names in lower case."""
    first, *lines = head[:-4].split(b"\r\n")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b": ")
        assert colon, line
        fields.append((name.lower(), value))
    return first, fields


@dataclass
class Answer:
    """An answer as a client read it. whole: its framing says that nothing is missing."""

    version: bytes
    status: int
    reason: bytes
    fields: Fields
    body: bytes
    whole: bool

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key == name), None)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


class Client:
    """A client's end of one connection, in raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        # The limit bounds what is read ahead: a slow reader of a test must be slow.
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=256 * 1024))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes, *, head_request: bool = False) -> Answer:
        await self.send(data)
        return await self.answer(head_request=head_request)

    async def head(self) -> Answer:
        """The head of an answer, its body unread."""
        first, fields = split_head(await read_head(self.reader))
        version, status, reason = first.split(b" ", 2)
        return Answer(version, int(status), reason, fields, b"", False)

    async def answer(self, *, head_request: bool = False) -> Answer:
        """One whole answer, or what there is of it when the connection ends early (`whole` is False)."""
        answer = await self.head()
        coding, length = answer.get(b"transfer-encoding"), answer.get(b"content-length")
        if head_request or answer.status in {204, 304} or answer.status < 200:
            answer.whole = True
        elif coding is not None:
            assert coding == b"chunked"
            assert length is None, "an answer must not have both framings"
            answer.body, answer.whole = await self.chunks()
        elif length is not None:
            answer.body, answer.whole = await self._exactly(int(length))
        else:
            answer.body = await self.reader.read()  # a reset raises: only a clean end is an end
            answer.whole = True
        return answer

    async def rest(self) -> bytes:
        """Everything up to the end of the connection. ConnectionResetError on a reset."""
        return await self.reader.read()

    async def closed(self) -> bool:
        """True once the router has ended the connection without another byte."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()

    def half_close(self) -> None:
        self.writer.write_eof()

    async def _exactly(self, size: int) -> tuple[bytes, bool]:
        try:
            return await self.reader.readexactly(size), True
        except asyncio.IncompleteReadError as error:
            return error.partial, False

    async def chunks(self) -> tuple[bytes, bool]:
        """A chunked body after its head has been read; whether it is whole."""
        body = b""
        while True:
            line = await self.reader.readline()
            if not line.endswith(b"\r\n"):
                return body, False
            size = int(line, 16)
            piece, whole = await self._exactly(size + 2)
            if not whole:
                return body + piece, False
            assert piece.endswith(b"\r\n")
            if size == 0:
                return body, True
            body += piece[:-2]


def get(path: str, extra: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: t\r\n%b\r\n" % (path.encode(), extra)


def post(body: bytes, path: str = "/v1/chat/completions", extra: bytes = b"") -> bytes:
    """A POST of JSON with content-length."""
    return b"POST %b HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b" % (
        path.encode(),
        len(body),
        extra,
        body,
    )


def chat(model: str = "m") -> bytes:
    """A small chat request for a model."""
    return post(b'{"model":"%b","messages":[]}' % model.encode())
