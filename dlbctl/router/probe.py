"""The root's side of probing: one state stream and one ping a second for each leaf address."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dlbctl.core.errors import shortened
from dlbctl.core.events import Failure, State
from dlbctl.router.http1 import Headers
from dlbctl.router.leaf_faults import NO_ANSWER, OTHER_TOKEN
from dlbctl.router.upstream import Address, Pool, Upstream

if TYPE_CHECKING:
    from dlbctl.router.router import Router

PING_S = 1.0
PINGS_KEPT = 10  # the minimum over ten seconds is distance; the rest is queueing
LOST_PING_S = 5.0
RETRY_S = 0.25
RETRY_MAX_S = 2.0
# The protocol's max(50 ms, 4 RTT) ejects a healthy leaf whenever its event loop is busy for that long: a
# large body or a starved core does it. A dead leaf refuses connections long before this anyway.
SILENCE_MIN_S = 3.0
LINES_TO_RETURN = 2

_DECODER = msgspec.json.Decoder(State)


class Ping:
    """Measures the round trip to an address on a connection of its own, and brings news there. Satisfies `Answered`.

    refused: told when the leaf does not know this root, which a stream that is open already does not show.
    """

    def __init__(self, router: Router, target: str, address: str, refused: Callable[[], None]) -> None:
        self._router = router
        self._target = target
        self._refused = refused
        self._pool = Pool(router.loop, Address(address), router.wheel)
        self._sent_s = 0.0
        self._residence_s = 0.0
        self._samples: deque[float] = deque(maxlen=PINGS_KEPT)
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Ping {self._pool.address.url} {self.rtt_s}>"

    @property
    def rtt_s(self) -> float | None:
        """The least of the last ten round trips; None before the first."""
        return min(self._samples, default=None)

    async def run(self) -> None:
        """Ping once a second until cancelled."""
        try:
            while True:
                self._send()
                await asyncio.sleep(PING_S if self._samples else RETRY_S)
        finally:
            if self._connecting is not None:
                self._connecting.cancel()
            if self._upstream is not None:
                self._upstream.abort()
            self._pool.close()

    def _send(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            return
        if self._upstream is not None:
            if self._router.clock() - self._sent_s < LOST_PING_S:
                return
            self._upstream.abort()
        upstream = self._pool.take()
        if upstream is None:
            self._connecting = self._pool.connect(self)
        else:
            self.connected(upstream)

    def connected(self, upstream: Upstream) -> None:
        """Ask. The time to connect is not part of the round trip."""
        self._upstream = upstream
        head, body = self._router.ping(self._pool.address, self._target, self.rtt_s)
        self._sent_s = self._router.clock()
        upstream.ask(self, head, body, head_request=False)

    def head(self, status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> None:  # noqa: ARG002
        """Take off the time the ping waited inside the leaf."""
        value = next((value for name, value in headers if name == b"dlb-residence-us"), b"")
        self._residence_s = int(value) / 1e6 if value.isdigit() else 0.0
        if status == 200:
            self._samples.append(max(0.0, self._router.clock() - self._sent_s - self._residence_s))
        elif status == 401:
            self._refused()

    def data(self, pieces: list[bytes], complete: bool) -> None:  # noqa: ARG002 - nothing in it
        """Once it is whole, ready for the next."""
        if complete:
            self._upstream = None

    def lost(self, failure: Failure) -> None:  # noqa: ARG002
        """The stream's fate decides about the leaf; distance is simply measured again."""
        self._upstream = None


class Subscription:
    """Keeps one leaf's state stream open and hands its lines to the root tier. Satisfies `Answered`."""

    def __init__(self, router: Router, target: str, address: str, interval_ms: float) -> None:
        self._router = router
        self._target = target
        self._address = address
        self._interval_s = interval_ms / 1e3
        self._path = f"/dlb/v1/state?interval={interval_ms:g}"
        self._pool = Pool(router.loop, Address(address), router.wheel)
        self._ping = Ping(router, target, address, lambda: self._end(OTHER_TOKEN))
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._partial = b""
        self._lines = 0
        self._fault = ""  # what ended the attempt, as far as the leaf has told
        self._heard_s = 0.0
        self._ended = asyncio.Event()
        self._farewell = False  # the leaf itself ended the stream

    def __repr__(self) -> str:
        return f"<Subscription {self._target} {self._address} {self._lines} lines>"

    async def run(self) -> None:
        """Subscribe, and again after each loss, until cancelled."""
        ping = asyncio.create_task(self._ping.run())
        retry_s = RETRY_S
        router = self._router
        try:
            while True:
                self._ended.clear()
                self._farewell = False
                self._lines = 0
                self._fault = ""
                self._heard_s = router.clock()
                self._connecting = self._pool.connect(self)
                await self._until_over()
                if self._farewell and not self._fault and self._lines >= LINES_TO_RETURN:
                    # It is about to leave, and whoever takes its place on the same socket answers already.
                    # Should nobody, the next attempt is refused: then it is down.
                    continue
                fault = NO_ANSWER
                if self._lines >= LINES_TO_RETURN:
                    retry_s = RETRY_S
                    fault = "stopped reporting"
                router.leaf_faults.note(router.clock(), self._target, self._address, self._fault or fault)
                router.tier.address_changed(router.clock(), self._target, self._address, False)
                await asyncio.sleep(retry_s)
                retry_s = min(2.0 * retry_s, RETRY_MAX_S)
        finally:
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)
            self._drop()
            router.leaf_faults.forget(self._address)

    async def _until_over(self) -> None:
        """Return when the stream has ended or fallen silent."""
        while not self._ended.is_set():
            silence_s = max(SILENCE_MIN_S, 4.0 * (self._ping.rtt_s or 0.0) + 20.0 * self._interval_s)
            left_s = self._heard_s + silence_s - self._router.clock()
            if left_s <= 0.0:
                break
            # Not wait_for, which in Python 3.11 swallows a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._ended.wait()
        self._drop()

    def _drop(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        self._pool.close()  # the connection of a leaf that refused is idle there: each attempt makes its own

    def connected(self, upstream: Upstream) -> None:
        """Ask for the stream."""
        self._upstream = upstream
        self._partial = b""
        upstream.ask(self, self._router.peer_get(self._pool.address, self._path), b"", head_request=False)

    def head(self, status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> None:  # noqa: ARG002
        """Only a 200 carries states."""
        if status == 401:
            self._end(OTHER_TOKEN)
        elif status != 200:
            self._end(f"answers {status} when it is asked for its state")

    def data(self, pieces: list[bytes], complete: bool) -> None:
        """Whole lines are states; a rest waits for more. A stream that ends is a leaf that goes away."""
        *lines, self._partial = (self._partial + b"".join(pieces)).split(b"\n")
        self._heard_s = self._router.clock()
        for line in lines:
            self._line(line)
        if complete:
            self._upstream = None
            self._farewell = True
            self._ended.set()

    def _line(self, line: bytes) -> None:
        try:
            state = _DECODER.decode(line)
        except msgspec.DecodeError as error:
            self._end(f"sent a state line that cannot be read: {error}")
            return
        if state.cell and state.cell != self._target:
            # One of the two files is wrong. What it reports would be taken for another cell's load and latency.
            self._end(f"says that it serves the cell {shortened(state.cell)!r}")
            return
        self._lines += 1
        rtt_s = self._ping.rtt_s
        if self._lines >= LINES_TO_RETURN and rtt_s is not None:
            self._router.leaf_faults.clear(self._target, self._address)
            self._router.tier.state_reported(self._heard_s, self._target, self._address, state, rtt_s)

    def _end(self, fault: str) -> None:
        """Give the attempt up: the leaf cannot be used as it is."""
        self._fault = fault
        self._ended.set()

    def lost(self, failure: Failure) -> None:  # noqa: ARG002
        """The connection is gone."""
        self._upstream = None
        self._ended.set()


class Prober:
    """Subscriptions to every leaf of every cell of a root tier. interval_ms: between the states that it wants."""

    def __init__(self, router: Router, interval_ms: float) -> None:
        self.interval_ms = interval_ms
        self._router = router
        self._tasks: dict[tuple[str, str, float], asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Prober of {len(self._tasks)} leaves>"

    async def run(self) -> None:
        """Probe until cancelled."""
        self.follow()
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def follow(self) -> None:
        """Subscribe to the leaves there are now, and no longer to those that are gone. The others are not touched."""
        wanted = {
            (target.name, address, self.interval_ms)
            for target in self._router.tier.targets.values()
            for address in target.addresses
            if address not in self._router.local
        }
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
        for key in wanted - self._tasks.keys():
            self._tasks[key] = asyncio.create_task(Subscription(self._router, *key).run())
