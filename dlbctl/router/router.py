"""One running router: its tiers, its upstream connections, its clock and timers. No singletons: tests make many."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from dlbctl.core.events import Arrival
from dlbctl.core.news import read_news
from dlbctl.core.session import session_of
from dlbctl.router.alarms import Alarms
from dlbctl.router.audit import Audit
from dlbctl.router.background import Background
from dlbctl.router.facts import BadBodyError, read_facts
from dlbctl.router.lag import LoopLag
from dlbctl.router.leaf_faults import LeafFaults
from dlbctl.router.ledger import Ledger
from dlbctl.router.record import Record
from dlbctl.router.relay import CAN_HAVE_BODY, Relay
from dlbctl.router.request import Refusal
from dlbctl.router.solver import Solver
from dlbctl.router.upstream import Address, Pool
from dlbctl.router.wheel import NEVER, Wheel

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.tier import Tier
    from dlbctl.router.downstream import Downstream
    from dlbctl.router.request import Request

MAX_ID_BYTES = 128
# How often waiting requests are looked at while nothing ends.
TURN_S = 0.1
PRIORITY_MAX = 100
PING_PATH = "/dlb/v1/ping"
_SESSION: Final = re.compile(rb"[0-9a-f]{16}")


class Router:
    """What relays share. tier: the one requests enter. local: leaf tiers of this process, by pseudo-address; a reload
    puts others in their place.

    token: shown to peers that are asked, and asked of peers that come; empty without one. accept_priority: whether
    clients may say how urgent a request is; peers may.
    """

    def __init__(
        self,
        tier: Tier,
        local: dict[str, Tier],
        loop: asyncio.AbstractEventLoop,
        *,
        token: bytes = b"",
        accept_priority: bool = False,
    ) -> None:
        self.tier = tier
        self.local = local
        self.token = token
        self.accept_priority = accept_priority
        self.loop = loop
        self.clock = time.monotonic
        self.wheel = Wheel(loop, self.clock)
        self.ready = True
        self.body_bytes = 0  # of all request bodies that are kept; their connections count
        # Told after each request's begin and end; whoever reports this router's state puts itself here.
        self.changed: Callable[[], None] = _nothing
        # Relays whose requests wait in a tier's admission queue.
        self.waiting: dict[Exchange, Relay] = {}
        self._giving_turns = False
        self.leaf_faults = LeafFaults()
        self.ledger = Ledger(tier)
        self.audit = Audit(self)
        self.alarms = Alarms(self)
        self.lag = LoopLag()
        self.solver = Solver(self.clock)
        self.background = Background(self)
        self._pools: dict[str, Pool] = {}
        self._upstream_idle_s = NEVER
        self._requests = 0
        self._boot = tier.boot.encode()
        self._cell = tier.settings.cell.encode()

    def __repr__(self) -> str:
        return f"<Router {self.tier!r}>"

    @property
    def tiers(self) -> list[Tier]:
        """Every tier of this process, the one requests enter first. Those of local cells may come and go."""
        return [self.tier, *self.local.values()]

    def pool(self, address: str) -> Pool:
        """The connections to an address."""
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = Pool(self.loop, Address(address), self.wheel, idle_s=self._upstream_idle_s)
        return pool

    def limit_idle(self, idle_s: float) -> None:
        """Let connections to servers and leaves stay unused for so long from now on."""
        self._upstream_idle_s = idle_s
        for pool in self._pools.values():
            pool.idle_s = idle_s

    def release(self, tier: Tier) -> None:
        """End the waiting in a tier that will have no more room; the tier outside it sends these requests elsewhere."""
        for exchange in [exchange for exchange in self.waiting if tier.exchanges.get(exchange.number) is exchange]:
            self.waiting[exchange].expired(self.clock())

    def retire_pools(self) -> None:
        """Let go of the idle connections to addresses that no tier has among its targets any more."""
        used = {address for tier in self.tiers for target in tier.targets.values() for address in target.addresses}
        for address in self._pools.keys() - used:
            self._pools.pop(address).retire()

    def close(self) -> None:
        """Let go of idle connections, timers and requests of its own, and write what is left of the access log."""
        self.wheel.stop()
        self.background.close()
        for pool in self._pools.values():
            pool.close()
        if self.ledger.access_log is not None:
            self.ledger.access_log.close()

    def unready(self) -> None:
        """Say no at /readyz from now on; requests are still served."""
        self.ready = False

    def routable(self) -> bool:
        """Whether a request could be served now."""
        return self.ready and self.tier.routable()

    def warm(self) -> bool:
        """Whether every target answers, and the root knows what the leaves of its own process serve."""
        served = {name for leaf in self.local.values() for name in leaf.models()}
        return served.issubset(self.tier.models()) and all(t.up for tier in self.tiers for t in tier.targets.values())

    # -- work beside requests ------------------------------------------------------------------------------

    async def keep_time(self) -> None:
        """Fire the tiers' timers, until cancelled."""
        while True:
            next_s = NEVER
            for tier in self.tiers:
                timer = tier.timer_fired(self.clock())
                next_s = min(next_s, timer.at_s)
                for solve in timer.solve:
                    self.solver.ask(tier, solve)
                for explore in timer.explore:
                    self.background.explore(tier, explore)
            if self.waiting:
                # A server that came back or is no longer busy makes room without a request that ends.
                self._give_turns()
                next_s = min(next_s, self.clock() + TURN_S)
            await asyncio.sleep(max(0.0, next_s - self.clock()))

    def moved(self) -> None:
        """A request was sent somewhere or has ended: tell whoever reports it, and give its place to one that waits."""
        self.changed()
        if self.waiting and not self._giving_turns:
            self._give_turns()

    def _give_turns(self) -> None:
        # What a turn sets in motion may make room again: that is seen by this loop, not by one inside it.
        self._giving_turns = True
        try:
            for tier in self.tiers:
                while (turn := tier.turn(self.clock())) is not None:
                    self.waiting.pop(turn.exchange).turned(turn.action)
        finally:
            self._giving_turns = False

    def report_local(self) -> None:
        """Report the leaves of this process to its root tier, as remote ones would."""
        now_s = self.clock()
        for address, leaf in self.local.items():
            self.tier.state_reported(now_s, leaf.settings.cell, address, leaf.report(now_s), 0.0)

    def tell_local(self) -> None:
        """Tell the leaves of this process what remote ones are told with a ping."""
        now_s, tier = self.clock(), self.tier
        for address, leaf in self.local.items():
            leaf.pinged(now_s, tier.settings.cell, 0.0, tier.news(now_s, leaf.settings.cell, address))

    def peer_get(self, address: Address, path: str) -> bytes:
        """The head of a GET of ours to a peer."""
        return self.peer_request(b"GET", address, path, b"")

    def peer_request(self, method: bytes, address: Address, path: str, more: bytes) -> bytes:
        """The head of a request of ours to a peer. more: header lines."""
        token = b"dlb-token: %b\r\n" % self.token if self.token else b""
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (method, path.encode(), address.authority, more, token)

    def ping(self, address: Address, target: str, rtt_s: float | None) -> tuple[bytes, bytes]:
        """A ping of ours to a leaf, its head and its body.

        Once the distance is known the leaf is told it, where we stand, and what the tier has to tell (`core.news`).
        """
        if rtt_s is None:
            return self.peer_get(address, PING_PATH), b""
        body = msgspec.json.encode(self.tier.news(self.clock(), target, address.url))
        more = b"dlb-source: %b\r\ndlb-rtt-us: %d\r\ncontent-length: %d\r\n"
        head = self.peer_request(b"POST", address, PING_PATH, more % (self._cell, round(rtt_s * 1e6), len(body)))
        return head, body

    def pinged(self, request: Request) -> None:
        """A root asked how far away this leaf is; once it knows, it says so, where it stands, and what is new."""
        source = request.header(b"dlb-source")
        if source:
            rtt_s = _number(request.header(b"dlb-rtt-us")) / 1e6
            self.tier.pinged(self.clock(), source.decode("utf-8", "replace"), rtt_s, read_news(request.body))

    # -- a request ---------------------------------------------------------------------------------------

    def relay(self, downstream: Downstream, request: Request, *, peer: bool) -> None:
        """Route a whole request. peer: it comes from a root that has shown itself to be one."""
        try:
            arrival = self._arrival(request, peer=peer)
            arrival.replayable = request.size <= downstream.listener.limits.replay_bytes
            if request.priority or request.patience:
                arrival.priority = _priority(request.priority) if peer or self.accept_priority else 0
                arrival.patience_s = _number(request.patience)
        except BadBodyError as error:
            downstream.refuse(request, Refusal(400, "invalid_body", str(error)))
            return
        number = self.ledger.next_number()
        record = Record(number, arrival.id, arrival.endpoint, request, downstream.client, peer=peer)
        record.priority = arrival.priority
        Relay(self, downstream, request, arrival, record).start()

    def _arrival(self, request: Request, *, peer: bool) -> Arrival:
        identity = self.identify(request).decode("latin-1")
        endpoint = request.header(b"dlb-endpoint") if peer else b""
        if endpoint:
            return Arrival(
                identity,
                endpoint.decode("utf-8", "replace"),
                len(request.body),
                _number(request.header(b"dlb-tokens")),
                int(_number(request.header(b"dlb-output-tokens"))),
                request.header(b"dlb-root").decode("latin-1"),
                source=request.header(b"dlb-source").decode("utf-8", "replace"),
                session=_session(request.header(b"dlb-session")),
            )
        facts = read_facts(request.body, request.content_type)
        model = facts.model or self._only_endpoint()
        session = session_of(request.session or facts.session)
        return Arrival(identity, model, len(request.body), 0.0, facts.max_output_tokens, session=session)

    def _only_endpoint(self) -> str:
        """A request without a model (an engine's native path) goes to the only endpoint there is."""
        names = self.tier.models() or list(self.tier.endpoints)
        if len(names) <= 1:
            return names[0] if names else ""  # the tier says that nobody serves anything yet
        raise BadBodyError(f"the request names no model; `model` may be one of: {', '.join(names)}")

    def identify(self, request: Request) -> bytes:
        """A request's id: the client's where it can be used, else one made here, which the request keeps."""
        if not 0 < len(request.id) <= MAX_ID_BYTES:
            # Ids need to be unique, not unguessable; uuid4 reads the system's entropy for each one.
            self._requests += 1
            request.id = b"%b-%d" % (self._boot, self._requests)
        return request.id

    def head_for(
        self, address: Address, request: Request, exchange: Exchange, client: bytes, *, to_leaf: bool
    ) -> bytes:
        """The head of the request as this hop sends it on; a leaf is told what this root already knows."""
        arrival = exchange.arrival
        lines = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n"
            % (request.method, request.url, address.authority, request.passed_on, request.id)
        ]
        forwarded_for = request.forwarded_for + client
        if forwarded_for:
            lines.append(b"x-forwarded-for: %b\r\n" % forwarded_for.removesuffix(b", "))
        if request.body or request.method in CAN_HAVE_BODY:
            lines.append(b"content-length: %d\r\n" % len(request.body))
        if to_leaf:
            lines.append(
                b"dlb-endpoint: %b\r\ndlb-tokens: %d\r\ndlb-output-tokens: %d\r\ndlb-source: %b\r\ndlb-root: %b\r\n"
                % (
                    arrival.endpoint.encode(),
                    int(exchange.prompt_tokens),
                    int(exchange.output_tokens),
                    self._cell,
                    self._boot,
                )
            )
            if arrival.session:
                lines.append(b"dlb-session: %016x\r\n" % arrival.session)
            if arrival.priority:
                lines.append(b"dlb-priority: %d\r\n" % arrival.priority)
            if exchange.deadline_s != NEVER:
                lines.append(b"dlb-deadline: %.3f\r\n" % max(exchange.deadline_s - self.clock(), 1e-3))
            if self.token:
                lines.append(b"dlb-token: %b\r\n" % self.token)
        lines.append(b"\r\n")
        return b"".join(lines)


def _nothing() -> None:
    pass


def _priority(text: bytes) -> int:
    try:
        return max(-PRIORITY_MAX, min(int(text), PRIORITY_MAX))
    except ValueError:
        return 0


def _session(text: bytes) -> int:
    """A peer's hash, 16 hex digits; 0 for anything else."""
    return int(text, 16) if _SESSION.fullmatch(text) else 0


def _number(text: bytes) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0.0 < number < math.inf else 0.0
