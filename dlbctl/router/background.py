"""Requests that a leaf makes by itself, of endpoints that it gets next to nothing of (`core.exploration`).

To the leaf's tier they are exchanges like any other, so that counts, audit, health and errors hold. They wait for
nobody and nobody waits for them; servers can tell them by their header `dlb-probe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dlbctl.core.events import Arrival, Explore, Failure, Forward, RequestAction, Usage, Wait
from dlbctl.core.exchange import NEVER
from dlbctl.router.kept import KeptAnswer
from dlbctl.router.reasons import OK, UPSTREAM_4XX, UPSTREAM_5XX
from dlbctl.router.record import Record
from dlbctl.router.request import Request
from dlbctl.router.upstream import Upstream
from dlbctl.router.usage import Tail, find_usage

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.tier import Tier
    from dlbctl.router.http1 import Headers
    from dlbctl.router.router import Router

HEADERS = b"content-type: application/json\r\ndlb-probe: background\r\n"
# Any text does that engines go on with. What begins alike they would have in their caches, so a number comes first.
SENTENCE = "Write the next part of this list of numbers, one in each line, and explain what each of them stands for. "
BYTES_PER_TOKEN = 4


class Background:
    """Of one router. open: those under way."""

    def __init__(self, router: Router) -> None:
        self.open: set[Exploring] = set()
        self._router = router
        self._made = 0

    def __repr__(self) -> str:
        return f"<Background {len(self.open)} open of {self._made}>"

    def explore(self, tier: Tier, wanted: Explore) -> None:
        """Make a request for a leaf tier, as its users make theirs; the tier may still decline it, for want of room.

        None is made while nobody has shown how users make them, nor once the router is about to stop.
        """
        router = self._router
        tally = router.ledger.tally.endpoints.get(wanted.endpoint)
        path = tally.url.partition(b"?")[0] if tally is not None else b""
        body_of = BODIES.get(path)
        if body_of is None or not router.ready:
            return
        self._made += 1
        request = Request()
        request.method, request.url, request.passed_on = b"POST", path, HEADERS
        request.id = b"probe-%b-%d" % (tier.boot.encode(), self._made)
        request.body = body_of(wanted, f"{self._made}. {SENTENCE}")
        request.size = len(request.body)
        request.received_s = now_s = router.clock()
        identity = request.id.decode()
        arrival = Arrival(
            identity,
            wanted.endpoint,
            request.size,
            float(wanted.prompt_tokens),
            wanted.output_tokens,
            background=True,
        )
        action = tier.arrived(now_s, arrival)
        if isinstance(action, Forward):
            record = Record(router.ledger.next_number(), identity, wanted.endpoint, request, b"", peer=False)
            record.background = True
            exploring = Exploring(router, tier, action.exchange, record)
            self.open.add(exploring)
            exploring.send(action)

    def close(self) -> None:
        """Let go of those under way."""
        for exploring in list(self.open):
            exploring.withdraw()


class Exploring:
    """One of them on its way to a server and back. Satisfies `Answered` and `Watched`."""

    def __init__(self, router: Router, tier: Tier, exchange: Exchange, record: Record) -> None:
        self.tier = tier
        self.exchange = exchange
        self.deadline_s = NEVER
        self.look_s = NEVER
        self._router = router
        self._record = record
        self._limits = tier.timeouts(exchange.endpoint)
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._kept: KeptAnswer | None = None
        self._tail = Tail()
        self._status = 0
        self._reused = False
        self._written = False

    def __repr__(self) -> str:
        return f"<Exploring {self.exchange}>"

    def send(self, forward: Forward) -> None:
        """Have it go to the address."""
        router = self._router
        self._written = False
        self._record.sent_to(self.tier, self.exchange)
        pool = router.pool(forward.address)
        upstream = None if forward.fresh else pool.take()
        self._reused = upstream is not None
        if upstream is not None:
            self.connected(upstream)
        else:
            self._may_last(self._limits.connect_s)
            self._connecting = pool.connect(self)
        router.moved()

    def withdraw(self) -> None:
        """Give it up, through no fault of its server's."""
        self._router.background.open.discard(self)
        self.tier.client_gone(self._router.clock(), self.exchange)
        self._drop()

    # -- the server's side (Answered) --------------------------------------------------------------------

    def connected(self, upstream: Upstream) -> None:
        """There is a connection: write it."""
        self._connecting = None
        if upstream.transport.is_closing():
            self.lost(Failure.REFUSED)
            return
        router, request = self._router, self._record.request
        now_s = router.clock()
        self._upstream = upstream
        self._written = True
        self._record.written_s = now_s
        self.tier.attempt_started(now_s, self.exchange)
        self._may_last(self._limits.first_byte_s)
        head = router.head_for(upstream.pool.address, request, self.exchange, b"", to_leaf=False)
        upstream.ask(self, head, request.body, head_request=False)

    def head(self, status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> None:  # noqa: ARG002
        """The answer's head: one that says busy is an attempt that failed."""
        self._status = status
        if self.tier.keeps_back(self.exchange, status):
            self._kept = KeptAnswer(status, reason, headers)

    def data(self, pieces: list[bytes], complete: bool) -> None:
        """More of the answer, of which only its end is looked at."""
        kept = self._kept
        if kept is not None and kept.has_room_for(pieces):
            kept.body += b"".join(pieces)
        elif pieces and kept is None:
            if not self._record.begun_s:
                self._record.begun_s = self._router.clock()
                self.tier.first_byte(self._record.begun_s, self.exchange, self._status)
            self._tail.add(b"".join(pieces))
        self._may_last(self._limits.idle_s)
        if complete:
            self._complete(kept)

    def _complete(self, kept: KeptAnswer | None) -> None:
        self._upstream = None
        if kept is not None:
            self._fail(kept.failure, retry_after_s=kept.retry_after_s)
            return
        now_s, status = self._router.clock(), self._status
        usage = find_usage(self._tail.read()) if status < 400 else None
        self.tier.ended(now_s, self.exchange, status, usage, 0.0)
        self._record.complete = True
        code = OK if status < 400 else UPSTREAM_4XX if status < 500 else UPSTREAM_5XX
        self._over(now_s, status, code, usage)

    def lost(self, failure: Failure) -> None:
        """The attempt ended before the answer was whole."""
        reused = self._reused and self._upstream is not None and not self._upstream.heard
        self._connecting = self._upstream = None
        self._fail(self._kept.failure if self._kept is not None else failure, reused=reused)

    def _fail(self, failure: Failure, *, reused: bool = False, retry_after_s: float = 0.0) -> None:
        answered = bool(self._record.begun_s)
        now_s = self._router.clock()
        self._do(
            self.tier.attempt_failed(now_s, self.exchange, failure, self._written, answered, reused, retry_after_s)
        )

    def _do(self, action: RequestAction) -> None:
        """A server that had closed its connection is asked once more, on another; otherwise that was it."""
        if isinstance(action, Forward):
            self.send(action)
        else:
            assert not isinstance(action, Wait)
            self._over(self._router.clock(), 0, action.code, None)

    # -- time (Watched) ----------------------------------------------------------------------------------

    def expired(self, now_s: float) -> None:
        """The server has been silent for too long."""
        self._drop()
        total = self._total_s() <= now_s
        self._do(self.tier.expired(now_s, self.exchange, total))

    def _may_last(self, phase_s: float) -> None:
        """The phase that begins may last so long; 0 for no limit."""
        at_s = self._router.clock() + phase_s if phase_s else NEVER
        self._router.wheel.watch(self, min(at_s, self._total_s()))

    def _total_s(self) -> float:
        return self._record.request.received_s + self._limits.total_s if self._limits.total_s else NEVER

    # -- inside ------------------------------------------------------------------------------------------

    def _over(self, now_s: float, status: int, code: str, usage: Usage | None) -> None:
        self.deadline_s = NEVER
        self._router.background.open.discard(self)
        self._router.ledger.explored(self._record, now_s, status, code, usage)
        self._router.moved()

    def _drop(self) -> None:
        self.deadline_s = NEVER
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.abort()
        self._connecting = self._upstream = None


# -- what is asked, by the path that it is asked at ----------------------------------------------------------


def _chat(wanted: Explore, text: str) -> bytes:
    messages = [{"role": "user", "content": _prompt(wanted, text)}]
    return msgspec.json.encode({"model": wanted.endpoint, "messages": messages, "max_tokens": wanted.output_tokens})


def _completion(wanted: Explore, text: str) -> bytes:
    prompt = _prompt(wanted, text)
    return msgspec.json.encode({"model": wanted.endpoint, "prompt": prompt, "max_tokens": wanted.output_tokens})


def _prompt(wanted: Explore, text: str) -> str:
    """About as many tokens as are wanted; how many they were the server tells."""
    size = wanted.prompt_tokens * BYTES_PER_TOKEN
    return (text + SENTENCE * (size // len(SENTENCE)))[: max(size, BYTES_PER_TOKEN)]


BODIES: dict[bytes, Callable[[Explore, str], bytes]] = {
    b"/v1/chat/completions": _chat,
    b"/v1/completions": _completion,
}
