"""One direction of a delayed connection: a bounded FIFO, its one timer, and the wire that sets the delay.

A byte never arrives early. It arrives up to about 1 ms late, the resolution of the event loop's timers, which
is little beside a WAN; `Wire.worst_late_s` records how late it really was.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections import deque
from dataclasses import dataclass
from enum import Enum
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from collections.abc import Callable

# Per direction of a connection, as a TCP window would: past it the sender has to wait.
# 1 MiB on 120 ms one way is 8 MB/s.
WINDOW_BYTES = 1 << 20

# Closing a socket with this sends RST instead of FIN.
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Mark(Enum):
    """What travels in a direction besides bytes, in order with them."""

    OPEN = "open"
    EOF = "eof"
    RESET = "reset"


@dataclass(slots=True)
class Wire:
    """One direction of a link, for all its connections: delay and jitter, or a black hole."""

    delay_s: float
    jitter_s: float
    rng: Random
    passes: bool = True
    resumed_arrival_s: float = 0.0
    carried_bytes: int = 0
    worst_late_s: float = 0.0

    def arrival_s(self, sent_s: float) -> float:
        """Return when something sent now arrives, unless something sent before it arrives later."""
        return sent_s + self.delay_s + (self.rng.uniform(0.0, self.jitter_s) if self.jitter_s else 0.0)

    def stop(self) -> None:
        """Become a black hole: what is under way waits, as if its sender had to send it again."""
        self.passes = False

    def resume(self) -> None:
        """Carry again: what waited arrives one delay from now."""
        self.passes = True
        self.resumed_arrival_s = self.arrival_s(monotonic())

    def note_delivery(self, size: int, late_s: float) -> None:
        """Count bytes that left the wire, and how far past their time."""
        self.carried_bytes += size
        self.worst_late_s = max(self.worst_late_s, late_s)


class DelayLine:
    """Bytes and marks on their way from a source transport to a sink transport, in order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wire: Wire,
        on_mark: Callable[[Mark], None],
        *,
        opened_s: float = 0.0,
    ) -> None:
        """Make an empty line; what is sent before `opened_s`, when a connect would end, leaves then."""
        self._loop = loop
        self._wire = wire
        self._on_mark = on_mark
        self._opened_s = opened_s
        self._queue: deque[tuple[float, bytes | Mark]] = deque()
        self._queued_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._source: asyncio.Transport | None = None
        self._source_held = False
        self._sink: asyncio.Transport | None = None
        self._sink_full = False

    def __repr__(self) -> str:
        delay_ms = self._wire.delay_s * 1e3
        return f"DelayLine({len(self._queue)} items, {self.buffered_bytes} bytes, {delay_ms:g} ms)"

    @property
    def buffered_bytes(self) -> int:
        """Bytes held here: on the wire, or accepted by nobody yet."""
        sink = self._sink
        return self._queued_bytes + (sink.get_write_buffer_size() if sink and not sink.is_closing() else 0)

    def take_source(self, source: asyncio.Transport) -> None:
        """Say whose reading to pause when the line is full."""
        self._source = source

    def take_sink(self, sink: asyncio.Transport) -> None:
        """Say whom to write to; bytes wait until then."""
        self._sink = sink
        self.arm()

    def send_open(self) -> None:
        """Send what opens the connection, ahead of any byte."""
        self._push(Mark.OPEN, self._wire.arrival_s(monotonic()))

    def send(self, item: bytes | Mark) -> None:
        """Put bytes, an end or a reset on the wire."""
        self._push(item, self._wire.arrival_s(max(monotonic(), self._opened_s)))
        if isinstance(item, bytes):
            self._queued_bytes += len(item)
            if self._queued_bytes > WINDOW_BYTES:
                self._hold_source()

    def hold(self) -> None:
        """Deliver nothing until `release`: the sink's own buffer is full."""
        self._sink_full = True
        self._disarm()

    def release(self) -> None:
        """Deliver again: the sink took what it had."""
        self._sink_full = False
        self.arm()

    def drop(self) -> None:
        """Forget everything: the sink is gone."""
        self._queue.clear()
        self._queued_bytes = 0
        self._sink = None
        self._disarm()

    def arm(self) -> None:
        """Set the timer for the head of the queue, where it can be delivered at all."""
        if self._timer or not self._queue or not self._wire.passes or self._sink_full or self._sinkless():
            return
        # Never below one turn of the loop: bytes written in this one have left before a reset destroys them.
        wait_ms = max(1, math.ceil((self._due_s() - monotonic()) * 1e3))
        self._timer = self._loop.call_later(wait_ms / 1e3, self._deliver)

    def _sinkless(self) -> bool:
        return self._sink is None and self._queue[0][1] is not Mark.OPEN

    def _push(self, item: bytes | Mark, arrival_s: float) -> None:
        # TCP keeps order: what jitter or a shorter delay would let overtake waits behind what was sent before.
        self._queue.append((arrival_s, item))
        self.arm()

    def _due_s(self) -> float:
        return max(self._queue[0][0], self._wire.resumed_arrival_s)

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        self._timer = None
        if not self._wire.passes:
            return
        now_s = monotonic()
        if chunks := self._due_chunks(now_s):
            self._write(b"".join(chunks))
        elif self._queue and self._due_s() <= now_s:
            self._deliver_mark()
        self.arm()

    def _due_chunks(self, now_s: float) -> list[bytes]:
        chunks: list[bytes] = []
        while self._queue and (due_s := self._due_s()) <= now_s:
            item = self._queue[0][1]
            if isinstance(item, Mark):
                break
            chunks.append(item)
            self._queue.popleft()
            self._wire.note_delivery(len(item), now_s - due_s)
        return chunks

    def _write(self, data: bytes) -> None:
        assert self._sink is not None
        self._queued_bytes -= len(data)
        self._sink.write(data)
        if self._queued_bytes < WINDOW_BYTES // 2:
            self._let_source_read()

    def _deliver_mark(self) -> None:
        _, mark = self._queue.popleft()
        assert isinstance(mark, Mark)
        match mark:
            case Mark.OPEN:
                pass
            case Mark.EOF:
                if self._sink and not self._sink.is_closing():
                    self._sink.write_eof()
            case Mark.RESET:
                if self._sink:
                    reset(self._sink)
            case _:
                assert_never(mark)
        self._on_mark(mark)

    def _hold_source(self) -> None:
        if self._source and not self._source_held and not self._source.is_closing():
            self._source.pause_reading()
            self._source_held = True

    def _let_source_read(self) -> None:
        if self._source and self._source_held and not self._source.is_closing():
            self._source.resume_reading()
            self._source_held = False


def reset(transport: asyncio.Transport) -> None:
    """Close a TCP connection with RST, dropping what was not sent."""
    if not transport.is_closing():
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        transport.abort()
