"""One request on its way: from the client's connection through the tiers' decisions to an upstream and back.

A relay passes what happens to the tiers as events and does what they answer. A root whose cell runs in the
same process stacks two tiers; the innermost hears first, and what it cannot mend goes to the one outside it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from dlbctl.core.events import Arrival, Cancel, Failure, Forward, Reject, RequestAction, Wait
from dlbctl.core.exchange import NEVER
from dlbctl.router.http1 import HOP_BY_HOP, PEER_PREFIX, REASONS, Headers, error_body
from dlbctl.router.kept import NO_HEADER, KeptAnswer
from dlbctl.router.reasons import CLIENT_STALLED, KILLED, OK, UPSTREAM_4XX, UPSTREAM_5XX
from dlbctl.router.usage import Tail, find_usage

if TYPE_CHECKING:
    from dlbctl.core.events import Usage
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.settings import Timeouts
    from dlbctl.core.tier import Tier
    from dlbctl.router.downstream import Downstream
    from dlbctl.router.record import Record
    from dlbctl.router.request import Request
    from dlbctl.router.router import Router
    from dlbctl.router.upstream import Upstream

# What every answer to a client says of us; a server's words in our name are dropped.
OWN_HEADERS: Final = frozenset({b"x-request-id", b"x-dlb-cell", b"x-dlb-server"})
NOT_PASSED_BACK: Final = HOP_BY_HOP | OWN_HEADERS
FOR_CLIENTS: Final = b"x-dlb-cell: %b\r\nx-dlb-server: %b\r\n"
FOR_PEERS: Final = b"dlb-cell: %b\r\ndlb-server: %b\r\n"
CAN_HAVE_BODY: Final = frozenset({b"POST", b"PUT", b"PATCH"})

# Clients that try again by themselves are told not to: whoever ended it did not mean them to.
_KILLED: Final = Reject(503, KILLED, "an operator ended the request")
_NO_RETRY: Final = b"x-should-retry: false\r\n"


class Relay:
    """One request between a client and an upstream. Satisfies `Responder` and `Answered`."""

    # Defaults stand here and not in the initialiser: most requests change few of them.
    _upstream: Upstream | None = None
    _connecting: asyncio.Task[None] | None = None
    _failure = Failure.REFUSED
    _reused = False
    _written = False
    _answered = False  # the head of an answer for the client is here
    _keeping: KeptAnswer | None = None  # an error that is coming in
    _kept: tuple[int, bytes] | None = None  # status and bytes (but for the connection header) of the last whole one
    _retry_after_s = 0.0
    _begun = False  # and the first byte of its body
    _status = 0
    _chunked = False  # framed by us, for a body whose length is not known
    _framed = True  # the framing shows whether the answer is whole
    _keep_alive = True
    _head = b""  # of the answer, until it is sent with what came with it
    _paused = False
    _paused_s = 0.0
    _stalled_s = 0.0
    _first_byte_s = 0.0
    _idle_s = NEVER
    _total_deadline_s = NEVER

    def __init__(
        self, router: Router, downstream: Downstream, request: Request, arrival: Arrival, record: Record
    ) -> None:
        self._router = router
        self._downstream = downstream
        self._request = request
        self._arrival = arrival
        self.record = record
        self._hops: list[tuple[Tier, Exchange]] = []
        self._tail = Tail()

    def __repr__(self) -> str:
        return f"<Relay {self._arrival.id} {self._hops[-1][1] if self._hops else 'nowhere'}>"

    def start(self) -> None:
        """The request is whole: have it routed."""
        self._downstream.responder = self
        self._router.ledger.opened(self)
        tier = self._router.tier
        self._do(tier, tier.arrived(self._router.clock(), self._arrival))

    # -- doing what the tiers say ------------------------------------------------------------------------

    def _do(self, tier: Tier, action: RequestAction) -> None:
        """Carry out an action of the innermost tier, asking inner and outer tiers until one is final."""
        router, hops = self._router, self._hops
        while True:
            if isinstance(action, Forward):
                exchange = action.exchange
                if not hops or hops[-1][1] is not exchange:
                    hops.append((tier, exchange))
                local = router.local.get(action.address)
                if local is None:
                    self._send_to(action)
                    router.moved()
                    return
                action = self._enter(local, tier, exchange)
                tier = local
                continue
            if isinstance(action, Wait):
                if not hops or hops[-1][1] is not action.exchange:
                    hops.append((tier, action.exchange))
                self._wait(action)
                return
            if hops and hops[-1][0] is tier:
                hops.pop()
            if not hops:
                self._end_with(action)
                router.moved()
                return
            tier, exchange = hops[-1]
            # That no server of a cell would take it does not mean that the cell is dead.
            failure = self._failure if self._written else Failure.NO_ROOM
            outer = tier.attempt_failed(
                router.clock(), exchange, failure, self._written, self._answered, False, self._retry_after_s
            )
            if not (isinstance(outer, Reject) and failure is Failure.NO_ROOM):
                action = outer  # else the inner tier knows better why

    def _enter(self, leaf: Tier, root: Tier, exchange: Exchange) -> RequestAction:
        """Hand the request to a leaf of this process, with what the root already knows of it."""
        self._written = False
        self.record.written_s = 0.0
        now_s, mine = self._router.clock(), self._arrival
        # One of its own: the root learns from a request that came through no root.
        arrival = Arrival(
            mine.id,
            mine.endpoint,
            mine.prompt_bytes,
            exchange.prompt_tokens,
            int(exchange.output_tokens + 0.5),
            root.boot,
            mine.priority,
            max(exchange.deadline_s - now_s, 1e-3) if exchange.deadline_s != NEVER else 0.0,  # 0 is for ever
            mine.replayable,
            root.settings.cell,
            mine.session,
        )
        return leaf.arrived(now_s, arrival)

    def _wait(self, wait: Wait) -> None:
        """No server has room: wait for a turn, or for the time at which waiting ends."""
        self._written = False
        self.record.queue_up(self._router.clock())
        self._router.waiting[wait.exchange] = self
        tier, exchange = self._hops[-1]
        self._limit_total(tier.timeouts(exchange.endpoint))
        self._set_deadline(wait.until_s)
        self._router.moved()

    def turned(self, action: Forward | Reject) -> None:
        """The waiting is over."""
        self._do(self._hops[-1][0], action)

    def _send_to(self, forward: Forward) -> None:
        self._written = False
        self._retry_after_s = 0.0
        tier = self._hops[-1][0]
        self.record.sent_to(tier, forward.exchange)
        if self.record.queued_s:
            self.record.take_turn(self._router.clock())
        limits = tier.timeouts(forward.exchange.endpoint)
        self._first_byte_s = limits.first_byte_s
        self._idle_s = limits.idle_s or NEVER
        self._limit_total(limits)
        pool = self._router.pool(forward.address)
        # What cannot be sent again must not meet a pooled connection that is closing.
        upstream = pool.take() if self._arrival.replayable and not forward.fresh else None
        self._reused = upstream is not None
        if upstream is not None:
            self._write_to(upstream)
        else:
            self._set_deadline(self._router.clock() + limits.connect_s if limits.connect_s else NEVER)
            self._connecting = pool.connect(self)

    def _end_with(self, action: Reject | Cancel) -> None:
        downstream, code, status = self._downstream, action.code, self._status
        if self._answered or isinstance(action, Cancel):
            # The client must see a cut, never a clean end: no last chunk, or a reset where no framing shows it.
            downstream.cut(framed=self._framed)
        elif self._kept is not None:
            status, data = self._kept
            code = _code_of(status)
            self._end_with_kept(data)
        else:
            extra = self._served_by()
            if action.retry_after_s:
                extra += b"retry-after: %d\r\n" % action.retry_after_s
            if action is _KILLED:
                extra += _NO_RETRY
            if self.record.peer:
                extra += b"%b: %b\r\n" % (NO_HEADER, code.encode())
            status = action.status
            body = error_body(status, code, action.message)
            self.record.bytes_out += downstream.reply(self._request, status, body, extra)
        self._leave(self._router.clock(), status, code)

    def _end_with_kept(self, data: bytes) -> None:
        """Nobody did better: the client gets the last real answer there was."""
        downstream = self._downstream
        keep_alive = downstream.keeps_alive(self._request)
        if not keep_alive:
            data = data.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
        downstream.transport.write(data)
        downstream.finished(keep_alive=keep_alive)
        self.record.bytes_out += len(data)
        self.record.complete = True

    # -- upstream's side (Answered) ----------------------------------------------------------------------

    def connected(self, upstream: Upstream) -> None:
        """A new connection is ready."""
        self._connecting = None
        if upstream.transport.is_closing():
            self.lost(Failure.REFUSED)
        else:
            self._write_to(upstream)

    def _write_to(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._written = True
        now_s = self._router.clock()
        for tier, exchange in self._hops:
            tier.attempt_started(now_s, exchange)
        self.record.written_s = now_s
        self._set_deadline(now_s + self._first_byte_s if self._first_byte_s else NEVER)
        request = self._request
        address, client = upstream.pool.address, self._downstream.client
        # `tier` and `exchange` are the innermost ones.
        head = self._router.head_for(address, request, exchange, client, to_leaf=tier.role == "root")
        upstream.ask(self, head, request.body, head_request=request.method == b"HEAD")
        if not self._arrival.replayable:
            request.body = b""

    def head(self, status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> None:
        """The answer's head: pass it on, unless it is an error that another target may spare the client."""
        self._status = status
        if status >= 429 and not bodiless and self._keeps_back(status):
            self._keeping = KeptAnswer(status, reason, headers)
        elif status == 401 and self._is_no_peer(headers):
            self._turned_away()
        else:
            self._pass_on(status, reason, headers, bodiless=bodiless)

    def _keeps_back(self, status: int) -> bool:
        return any(tier.keeps_back(exchange, status) for tier, exchange in self._hops)

    def _is_no_peer(self, headers: Headers) -> bool:
        """Whether a leaf refuses this root: what it passes on from a server bears that server's name."""
        return self._hops[-1][0].role == "root" and all(name != b"dlb-server" for name, _ in headers)

    def _turned_away(self) -> None:
        """The leaf takes another token: no fault of the client's, and nobody has begun. As if it did not answer."""
        self._drop_upstream()
        self._written = False
        self.record.written_s = 0.0
        self.lost(Failure.REFUSED)

    def _pass_on(self, status: int, reason: bytes, headers: Headers, *, bodiless: bool) -> None:
        """Pass the head on with our headers in place of the hop's."""
        self._answered = True
        self._downstream.let_go(self._request)  # no retry can need its body now
        out, length, coded = self._lines(status, reason, headers)
        out.append(self._framing(length, coded=coded, bodiless=bodiless))
        out.append(self._own_headers())
        out.append(b"\r\n")
        self._head = b"".join(out)
        if self._downstream.paused:
            self.client_paused()

    def _lines(self, status: int, reason: bytes, headers: Headers) -> tuple[list[bytes], bytes, bool]:
        """The lines that travel on; the length the server gave, if any; whether the body is transfer-coded."""
        length = b""
        coded = False
        out = [b"HTTP/1.1 %d %b\r\n" % (status, reason or REASONS.get(status, b"-"))]
        for name, value in headers:
            if name in NOT_PASSED_BACK:
                if name == b"content-length":
                    length = value
                elif name == b"transfer-encoding":
                    coded = True
            elif name.startswith(PEER_PREFIX):
                self._peer_header(name, value)
            else:
                out.append(b"%b: %b\r\n" % (name, value))
        return out, length, coded

    def _framing(self, length: bytes, *, coded: bool, bodiless: bool) -> bytes:
        """Header lines that say where the body ends; one of unknown length is framed anew."""
        downstream, request = self._downstream, self._request
        lines = b""
        if length and not coded:
            lines = b"content-length: %b\r\n" % length
        elif not bodiless and request.version == "1.1":
            self._chunked = True
            lines = b"transfer-encoding: chunked\r\n"
        elif not bodiless:
            self._framed = False  # for HTTP/1.0 the end of the body is the end of the connection
        if not (self._framed and downstream.keeps_alive(request)):
            self._keep_alive = False
            lines += b"connection: close\r\n"
        return lines

    def data(self, pieces: list[bytes], complete: bool) -> None:
        """More of the answer: sent on in one write, framed anew where its length is not known."""
        kept = self._keeping
        if kept is not None:
            if kept.has_room_for(pieces):
                self._keep(kept, pieces, complete=complete)
                return
            self._keeping = None
            self._pass_on(kept.status, kept.reason, kept.headers, bodiless=False)
            pieces = [kept.body, *pieces]
        data = b""
        now_s = self._router.clock()
        if pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if not self._begun:
                self._begin(now_s, complete=complete)
            self._tail.add(data)  # the usage stands in the last bytes
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data = self._head + data
            self._head = b""
        if complete:
            self._complete(data, now_s)
        elif data:
            downstream = self._downstream
            downstream.transport.write(data)
            self.record.bytes_out += len(data)
            if self._begun:
                # The wheel looks at the deadline when it comes by: moving it away is an assignment.
                deadline_s = now_s + self._idle_s
                total_s = self._total_deadline_s
                downstream.deadline_s = min(total_s, deadline_s)

    def _keep(self, kept: KeptAnswer, pieces: list[bytes], *, complete: bool) -> None:
        """Collect an answer that says no; once it is whole, perhaps another target says yes."""
        kept.body += b"".join(pieces)
        if complete:
            self._upstream = None
            self._keeping = None
            lines, _, _ = self._lines(kept.status, kept.reason, kept.headers)
            self._kept = kept.status, b"".join([*lines, kept.framing, self._own_headers(), b"\r\n", kept.body])
            self._retry_after_s = kept.retry_after_s
            self._fail(kept.failure, reused=False)

    def _begin(self, now_s: float, *, complete: bool) -> None:
        """The first byte of the body: only now is the prompt read, engines send their head before."""
        self._begun = True
        self.record.begun_s = now_s
        for tier, exchange in self._hops:
            tier.first_byte(now_s, exchange, self._status)
        if not complete:
            self._set_deadline(now_s + self._idle_s)  # it may be nearer than the first byte's

    def _complete(self, data: bytes, now_s: float) -> None:
        self._upstream = None
        if self._paused:
            self._stalled_s += now_s - self._paused_s
        usage = find_usage(self._tail.read()) if self._status < 400 else None
        hops, self._hops = self._hops, []
        for tier, exchange in hops:
            tier.ended(now_s, exchange, self._status, usage, self._stalled_s)
        # After the counts, which must not hang on a write; uvloop writes at the end of its turn anyway.
        if self._chunked:
            data += b"0\r\n\r\n"
        self._downstream.transport.write(data)
        self.record.bytes_out += len(data)
        self._downstream.finished(keep_alive=self._keep_alive)
        self.record.complete = True
        self._leave(now_s, self._status, _code_of(self._status), usage)
        self._router.moved()

    def lost(self, failure: Failure) -> None:
        """The attempt ended before the answer was whole."""
        # A server that began to answer has seen the request, on whatever connection.
        reused = self._reused and self._upstream is not None and not self._upstream.heard
        self._connecting = None
        self._upstream = None
        if self._head:
            self._downstream.transport.write(self._head)
            self.record.bytes_out += len(self._head)
            self._head = b""
        if self._keeping is not None:
            failure = self._keeping.failure
            self._keeping = None
        self._fail(failure, reused=reused)

    def _fail(self, failure: Failure, *, reused: bool) -> None:
        self._failure = failure
        tier, exchange = self._hops[-1]
        now_s = self._router.clock()
        action = tier.attempt_failed(
            now_s, exchange, failure, self._written, self._answered, reused, self._retry_after_s
        )
        self._do(tier, action)

    # -- the client's side (Responder) -------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client left: the upstream is cancelled at once. Counts first, they must not hang on a close."""
        self._leave(self._withdraw(), self._status if self._answered else 0, self.record.left_as)
        self._router.moved()
        self._drop_upstream()

    def client_paused(self) -> None:
        """The client reads slower than the answer comes: read no faster than it does."""
        if self._upstream is not None and not self._paused:
            self._paused = True
            self._paused_s = self._router.clock()
            self._upstream.pause()
            if self._stalled_s == 0.0:
                for tier, exchange in self._hops:
                    tier.stalled(self._paused_s, exchange)

    def client_resumed(self) -> None:
        """The client has caught up."""
        if self._paused:
            self._paused = False
            now_s = self._router.clock()
            self._stalled_s += now_s - self._paused_s
            if self._upstream is not None:
                self._upstream.resume()
                self._set_deadline(now_s + self._idle_s)

    def expired(self, now_s: float) -> None:
        """The deadline has passed: the server's silence, or a client that stopped reading."""
        if self._paused:
            self.record.left_as = CLIENT_STALLED
            self._downstream.transport.abort()
            return
        written = self._written
        self._drop_upstream()
        self._keeping = None
        for _, exchange in self._hops:
            self._router.waiting.pop(exchange, None)
        if now_s >= self._total_deadline_s:
            self._out_of_time(now_s)
            return
        self._failure = Failure.IDLE_TIMEOUT if self._begun else Failure.FIRST_BYTE_TIMEOUT
        if not written:
            self._failure = Failure.CONNECT_TIMEOUT
        if self._answered and not self._begun:
            # The head is out, of which the tiers know nothing: no other server may answer any more.
            self._fail(self._failure, reused=False)
            return
        tier, exchange = self._hops[-1]
        self._do(tier, tier.expired(now_s, exchange, False))

    def _out_of_time(self, now_s: float) -> None:
        """The whole request took too long: no tier may try anything more."""
        action: RequestAction = Cancel("total_timeout")
        for tier, exchange in reversed(self._hops):
            action = tier.expired(now_s, exchange, True)
        self._hops = []
        assert isinstance(action, Reject | Cancel)
        self._end_with(action)
        self._router.moved()

    # -- the operator's side -----------------------------------------------------------------------------

    def kill(self) -> None:
        """End it: with an error if nothing of an answer was sent, else cut as an upstream's death would cut it."""
        self._withdraw()
        self._drop_upstream()
        self._kept = None  # an earlier server's no is not why it ends
        self._end_with(_KILLED)
        self._router.moved()

    def held(self) -> list[tuple[Tier, int]]:
        """The exchanges it keeps open."""
        return [(tier, exchange.number) for tier, exchange in self._hops]

    # -- inside ------------------------------------------------------------------------------------------

    def _withdraw(self) -> float:
        """Give it up through no fault of any target's; the time of that."""
        now_s = self._router.clock()
        for tier, exchange in self._hops:
            self._router.waiting.pop(exchange, None)
            tier.client_gone(now_s, exchange)
        self._hops = []
        return now_s

    def _leave(self, now_s: float, status: int, code: str, usage: Usage | None = None) -> None:
        """It is over, on whatever path. status: as the client saw it, 0 for none."""
        self._router.ledger.ended(self.record, now_s, status, code, usage)

    def _drop_upstream(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None

    def _limit_total(self, limits: Timeouts) -> None:
        """The first tier to have it somewhere says how long it may take in all."""
        if limits.total_s and self._total_deadline_s == NEVER:
            self._total_deadline_s = self._request.received_s + limits.total_s

    def _set_deadline(self, at_s: float) -> None:
        """The phase that begins may last until then."""
        deadline_s = min(at_s, self._total_deadline_s)
        if deadline_s < self._downstream.look_s:
            self._router.wheel.watch(self._downstream, deadline_s)
        else:
            self._downstream.deadline_s = deadline_s

    def _peer_header(self, name: bytes, value: bytes) -> None:
        """Which server it was, as a leaf says; believed because this root chose to ask it."""
        if name == b"dlb-server":
            self.record.server = value

    def _own_headers(self) -> bytes:
        """What this hop says of an answer that travels on."""
        return b"x-request-id: %b\r\n%b" % (self._request.id, self._served_by())

    def _served_by(self) -> bytes:
        """Header lines that say where it was sent last, in a client's words or a peer's."""
        cell, server = self.record.cell, self.record.server
        if cell and server:
            return (FOR_PEERS if self.record.peer else FOR_CLIENTS) % (cell, server)
        return b"x-dlb-cell: %b\r\n" % cell if cell and not self.record.peer else b""


def _code_of(status: int) -> str:
    """The reason code of a complete answer."""
    if status < 400:
        return OK
    return UPSTREAM_4XX if status < 500 else UPSTREAM_5XX
