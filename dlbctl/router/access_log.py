"""The access log: a line of JSON for each request that is over. No text of requests, no headers, no query.

Lines wait in memory until the next flush, which a thread writes: neither a slow disk nor the making of JSON
holds up a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from dlbctl.core.errors import ConfigError
from dlbctl.router.reasons import REASONS

if TYPE_CHECKING:
    from dlbctl.core.events import Usage
    from dlbctl.router.record import Record

STDOUT = "stdout"
FLUSH_S = 0.5
# How long the end of the process waits for a disk, or for whoever reads its standard output.
CLOSE_S = 5.0
# What a disk may be behind, some 50 MB of lines; beyond it lines are dropped rather than memory filled.
LINES_KEPT = 100_000
# Clients choose paths and the names of models; a line of the log does not grow with them.
LETTERS_KEPT = 256

_LOG = logging.getLogger(__name__)


class AccessLine(msgspec.Struct):
    """One request. A figure that cannot be told is null, never a made-up zero.

    kind: `request`, or `probe` where a leaf has made it for itself.
    time: when it was whole. status: null when nothing was sent. code, by, phase: why it ended, who ended it and
    how far it had come (docs/reason-codes.md). source, root: cell and boot id of the root that passed it on; at a
    root, its own. bytes_in: of the body; bytes_out: all that was sent. ttft_s: until the first byte of the answer's
    body; e2e_s: until it was over; queue_s: waiting for a server with room; overhead_s: until it was written to a
    server, less that wait, of a request that was sent once.
    """

    time: datetime
    kind: str
    id: str
    client: str
    method: str
    path: str
    endpoint: str
    status: int | None
    code: str
    by: str
    phase: str
    cell: str
    server: str
    source: str
    root: str
    attempts: int
    bytes_in: int
    bytes_out: int
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    ttft_s: float | None
    e2e_s: float
    queue_s: float
    overhead_s: float | None


class AccessLog:
    """The file or standard output. source, root: what its own requests say of where they came from.

    Lines are dropped when the disk fails or does not keep up; how many is told in the process's own log. ConfigError
    when the file cannot be opened in the first place.
    """

    def __init__(self, path: str, *, source: str = "", root: str = "", lines_kept: int = LINES_KEPT) -> None:
        self.path = path
        self._refused = 0  # lines that found no room to wait
        self._failed = 0  # and those that the disk did not take; counted in the thread
        self._torn = False  # the file ends within a line: the next one must not go on there
        self._source = source
        self._root = root
        self._lines_kept = lines_kept
        self._told = 0
        self._waiting: list[AccessLine] = []
        self._encoder = msgspec.json.Encoder()
        try:
            self._fd = self._open()
        except OSError as error:
            raise ConfigError(f"access_log.path: {path}: cannot be written: {error.strerror or error}") from error
        self._moved = False
        self._batches: Queue[list[AccessLine] | None] = Queue(maxsize=1)
        # Not a thread of a pool: those are waited for at exit, however long.
        self._thread = Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<AccessLog {self.path}, {len(self._waiting)} lines waiting, {self.dropped} dropped>"

    @property
    def dropped(self) -> int:
        """Lines lost so far."""
        return self._refused + self._failed

    def note(self, record: Record, now_s: float, status: int, code: str, usage: Usage | None) -> None:
        """Have a line written, unless too many wait already."""
        if len(self._waiting) < self._lines_kept:
            self._waiting.append(self._line(record, now_s, status, code, usage))
        else:
            self._refused += 1

    async def run(self) -> None:
        """Flush from time to time, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.flush()

    def flush(self) -> None:
        """Have what is waiting written, as soon as what was flushed before is."""
        self._tell_dropped()
        if self._waiting or self._moved:
            with suppress(Full):
                self._batches.put_nowait(self._waiting)
                self._waiting = []

    def reopen(self) -> None:
        """Go on in a new file of the same name: the old one was moved away."""
        self._moved = True
        self.flush()

    def close(self) -> None:
        """Write what is left."""
        with suppress(Full):
            self._batches.put(self._waiting, timeout=CLOSE_S)
            self._batches.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _LOG.error("access log %s: cannot be written now; its last lines are lost", self.path)
        self._tell_dropped()

    # -- inside ------------------------------------------------------------------------------------------

    def _line(self, record: Record, now_s: float, status: int, code: str, usage: Usage | None) -> AccessLine:
        request = record.request
        received_s = request.received_s
        return AccessLine(
            time=datetime.fromtimestamp(time.time() - (now_s - received_s), UTC),
            kind="probe" if record.background else "request",
            id=record.id,
            client=record.client,
            method=request.method.decode("latin-1"),
            path=request.path[:LETTERS_KEPT].decode("latin-1"),
            endpoint=record.endpoint[:LETTERS_KEPT],
            status=status or None,
            code=code,
            by=REASONS[code].by,
            phase=record.phase,
            cell=record.cell.decode(),
            server=record.server.decode("utf-8", "replace"),
            source=self._source or record.from_peer(b"dlb-source"),
            root=self._root or record.from_peer(b"dlb-root"),
            attempts=record.attempts,
            bytes_in=request.size,
            bytes_out=record.bytes_out,
            tokens_in=usage.prompt_tokens if usage else None,
            tokens_out=usage.completion_tokens if usage else None,
            tokens_cached=usage.cached_tokens if usage else None,
            ttft_s=_rounded(record.begun_s - received_s if record.begun_s else None),
            e2e_s=round(now_s - received_s, 6),
            queue_s=round(record.waited_s + (now_s - record.queued_s if record.queued_s else 0.0), 6),
            overhead_s=_rounded(record.overhead_s()),
        )

    def _tell_dropped(self) -> None:
        if self.dropped > self._told:
            _LOG.error("access log %s: %d lines lost", self.path, self.dropped - self._told)
            self._told = self.dropped

    # -- in the thread -----------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (lines := self._batches.get()) is not None:
            if self._moved:
                self._moved = False
                self._reopen()
            self._write(lines)
        if self.path != STDOUT:
            os.close(self._fd)

    def _write(self, lines: list[AccessLine]) -> None:
        data = b"\n" * self._torn + b"".join(self._encoder.encode(line) + b"\n" for line in lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        except OSError as error:
            self._failed += min(len(lines), data.count(b"\n", written))
            _LOG.error("access log %s: %s", self.path, error.strerror or error)
        if written:
            self._torn = not data.endswith(b"\n", 0, written)

    def _reopen(self) -> None:
        if self.path == STDOUT:
            return
        try:
            fd = self._open()
        except OSError as error:
            _LOG.error("access log %s: cannot be opened again: %s", self.path, error.strerror or error)
            return
        os.close(self._fd)
        self._fd = fd
        self._torn = False

    def _open(self) -> int:
        """Append; only its user may read a new file."""
        if self.path == STDOUT:
            return sys.stdout.fileno()
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
