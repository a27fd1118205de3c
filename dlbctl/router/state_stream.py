"""The leaf's side of probing: state lines to every root that listens, soon after each change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from dlbctl.core.events import State
from dlbctl.router.pace import Pace

if TYPE_CHECKING:
    from dlbctl.router.downstream import Downstream
    from dlbctl.router.request import Request
    from dlbctl.router.router import Router

MIN_INTERVAL_S = 0.002
MAX_INTERVAL_S = 1.0
# Reporting may take this share of a core; beyond it the interval is stretched.
CORE_SHARE = 0.05


class Stream:
    """One root's state stream. Satisfies `Responder`. versions: of the two curves it has, by endpoint."""

    def __init__(self, publisher: StatePublisher, downstream: Downstream, interval_s: float) -> None:
        self.downstream = downstream
        self.interval_s = interval_s
        self.due_s = 0.0
        self.versions: dict[str, tuple[int, int]] = {}
        self._publisher = publisher

    def __repr__(self) -> str:
        return f"<Stream to {self.downstream.client.decode()} every {self.interval_s * 1e3:g} ms>"

    def client_gone(self) -> None:
        """The root left."""
        self._publisher.streams.discard(self)

    def client_paused(self) -> None:
        """Nothing to stop: a line that cannot be sent is not made (`downstream.paused`)."""

    def client_resumed(self) -> None:
        """The next line goes out when it is due."""

    def expired(self, now_s: float) -> None:
        """No deadline is ever set."""


class StatePublisher:
    """Makes state lines and hands them to the streams that are due."""

    def __init__(self, router: Router) -> None:
        self.streams: set[Stream] = set()
        self._router = router
        self._encoder = msgspec.json.Encoder()
        self._cost_s = 0.0
        self._pace = Pace(router.loop, self._report, MAX_INTERVAL_S)
        router.changed = self._pace.changed

    def __repr__(self) -> str:
        return f"<StatePublisher {len(self.streams)} streams>"

    def serve(self, downstream: Downstream, request: Request) -> None:
        """Answer GET /dlb/v1/state: one line, or with ?interval=MS a stream of them."""
        query = parse_qs(request.url.partition(b"?")[2].decode("latin-1"))
        if "interval" not in query:
            line = self._encoder.encode(self._router.tier.report(self._router.clock()))
            downstream.reply(request, 200, line + b"\n")
            return
        interval_s = _interval_s(query["interval"][0])
        downstream.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        stream = Stream(self, downstream, interval_s)
        downstream.responder = stream
        self.streams.add(stream)
        self._report()
        self._pace.changed()  # a root waits for a second line before it believes in a leaf

    def stop(self) -> None:
        """End every stream; roots notice and go elsewhere."""
        self._pace.stop()
        for stream in list(self.streams):
            stream.downstream.transport.write(b"0\r\n\r\n")
            stream.downstream.finished(keep_alive=False)
        self.streams.clear()

    def _report(self) -> None:
        if not self.streams:
            self._pace.interval_s = MAX_INTERVAL_S
            return
        started_s = time.perf_counter()
        now_s = self._router.clock()
        # Half an interval of grace: a timer that fires a little early must not skip a whole turn.
        due = [stream for stream in self.streams if stream.due_s <= now_s + 0.5 * stream.interval_s]
        if due:
            self._send(due, now_s)
        self._cost_s += 0.1 * (time.perf_counter() - started_s - self._cost_s)
        self._pace.interval_s = max(min(s.interval_s for s in self.streams), self._cost_s / CORE_SHARE)
        if len(due) < len(self.streams):
            self._pace.changed()  # for those whose turn has not come

    def _send(self, due: list[Stream], now_s: float) -> None:
        state = self._router.tier.report(now_s)
        versions = {name: (told.curve_version, told.tail_version) for name, told in state.endpoints.items()}
        whole = self._chunk(state) if any(stream.versions != versions for stream in due) else b""
        for endpoint in state.endpoints.values():
            endpoint.curve = endpoint.tail = None
        brief = self._chunk(state)
        for stream in due:
            if stream.downstream.paused:
                continue
            stream.downstream.transport.write(brief if stream.versions == versions else whole)
            stream.versions = versions
            stream.due_s = now_s + stream.interval_s

    def _chunk(self, state: State) -> bytes:
        line = self._encoder.encode(state) + b"\n"
        return b"%x\r\n%b\r\n" % (len(line), line)


def _interval_s(text: str) -> float:
    try:
        asked_s = float(text) / 1e3
    except ValueError:
        return MAX_INTERVAL_S
    # The order of the comparisons gives not-a-number the longest interval.
    return max(asked_s, MIN_INTERVAL_S) if asked_s < MAX_INTERVAL_S else MAX_INTERVAL_S
