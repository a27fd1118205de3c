"""Server-sent events out of bytes cut anywhere."""

from __future__ import annotations


class SseSplitter:
    """Collects the data of complete events; lines end in LF, CR LF or CR, as the standard allows.

    Only whole lines are looked at, so that a `data: [DONE]` inside a text ends nothing.
    """

    __slots__ = ("_data", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Take bytes in; return the data of every event they complete."""
        self._pending += received
        # A long line that comes in many reads is scanned once, at its end.
        if b"\n" not in received and b"\r" not in self._pending:
            return []
        return self._events(self._whole_lines())

    def close(self) -> list[bytes]:
        """The end of a body that ended well: an unfinished last line or event counts too."""
        lines = bytes(self._pending).splitlines()
        self._pending.clear()
        return self._events([*lines, b""])

    def _whole_lines(self) -> list[bytes]:
        lines = bytes(self._pending).splitlines(keepends=True)
        rest = b""
        # A final CR may be half of CR LF: it waits for the next byte.
        if lines and not lines[-1].endswith(b"\n"):
            rest = lines.pop()
        self._pending = bytearray(rest)
        return [line.rstrip(b"\r\n") for line in lines]

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
