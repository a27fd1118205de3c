"""A tier: root and leaf are two configurations of it.

It decides, the driver acts. Every public method that changes it is one of the events of `core.events`, and none
calls another, so a recorder hears each once; time comes in with the event, chance from the seed. So a live run
that was recorded can be run again offline, and the simulator runs this very code.
"""

from __future__ import annotations

import random
from heapq import nlargest
from itertools import islice
from math import ceil
from typing import Final

from dlbctl.core.admission import order
from dlbctl.core.audit import recount
from dlbctl.core.endpoint import DECODE_S_PER_TOKEN, PREFILL_S_PER_TOKEN, Endpoint
from dlbctl.core.errors import shortened
from dlbctl.core.estimator import REST_S
from dlbctl.core.events import (
    Arrival,
    Cancel,
    Drift,
    EndpointState,
    Explore,
    Failure,
    Forward,
    Reject,
    RequestAction,
    SetTimer,
    Solve,
    State,
    Turn,
    Usage,
    Wait,
)
from dlbctl.core.exchange import Exchange, Phase
from dlbctl.core.health import Standing
from dlbctl.core.mechanism import ROUND_S
from dlbctl.core.news import MAX_ENDPOINTS, EndpointNews, News
from dlbctl.core.programs import Solution
from dlbctl.core.samples import InFlight
from dlbctl.core.settings import RetrySettings, TierSettings, Timeouts
from dlbctl.core.surroundings import Surroundings
from dlbctl.core.target import Candidate

MAX_ROOTS_REMEMBERED = 64
# An event loop's timers count milliseconds: one that fires so early has not missed its time.
EARLY_S: Final = 0.001
# How exactly the time of a candidate's next dither is met.
DITHER_BEAT_S: Final = 1.0
# Enough for a mean to within a few percent; more would hold up the loop.
IN_FLIGHT_LOOKED_AT: Final = 512

# What the client is told when an attempt fails for good: status, code, words, Retry-After [s] (0 for none).
FAILURES: dict[Failure, tuple[int, str, str, int]] = {
    Failure.NO_ROOM: (503, "no_room", "no server that was asked has room for the request at present", 1),
    Failure.BUSY: (503, "upstream_busy", "every server that was asked says that it is busy", 1),
    Failure.LOADING: (503, "model_loading", "the inference server is still loading its model", 1),
    Failure.ERROR: (502, "upstream_error", "the inference server answered with an error", 0),
    Failure.REFUSED: (502, "upstream_unreachable", "no connection to the inference server", 0),
    Failure.UNSEEN: (502, "upstream_closed", "the inference server closed the connection before it answered", 0),
    Failure.CONNECT_TIMEOUT: (504, "upstream_connect_timeout", "connecting to the inference server took too long", 0),
    Failure.CLOSED: (502, "upstream_closed", "the inference server closed the connection before it answered", 0),
    Failure.PROTOCOL: (502, "upstream_protocol_error", "the inference server's answer is no HTTP that can be read", 0),
    Failure.FIRST_BYTE_TIMEOUT: (
        504,
        "upstream_first_byte_timeout",
        "the inference server did not begin to answer in time",
        0,
    ),
    Failure.IDLE_TIMEOUT: (504, "upstream_idle_timeout", "the inference server fell silent", 0),
    Failure.TOTAL_TIMEOUT: (504, "total_timeout", "the request took longer than it may", 0),
}
# Attempts that failed this way reached nobody, so trying again costs no server anything.
REACHED_NOBODY = frozenset({Failure.REFUSED, Failure.UNSEEN, Failure.CONNECT_TIMEOUT, Failure.NO_ROOM})
# The leaf that has no room has received the request, and counts it as received.
NOT_SENT = REACHED_NOBODY - {Failure.NO_ROOM}
# Ways to fail that leave no doubt that the server did not begin.
NOT_BEGUN = frozenset({Failure.BUSY, Failure.LOADING, Failure.NO_ROOM})
# Ways to fail in which somebody answered.
ANSWERS = frozenset({Failure.BUSY, Failure.LOADING, Failure.ERROR, Failure.NO_ROOM})
# Ways to fail that say nothing against a server's work (whether it answers at all is for probes to say).
NO_ILL_HEALTH = frozenset({*REACHED_NOBODY, *NOT_BEGUN, Failure.TOTAL_TIMEOUT}) - {Failure.CONNECT_TIMEOUT}
DOWN_AT_ONCE = frozenset({Failure.REFUSED, Failure.LOADING})
BUSY_STATUSES = frozenset({429, 503})


class Tier(Surroundings):
    """One tier's routing state: its surroundings, and `exchanges`, what is open, by number."""

    def __init__(self, settings: TierSettings, boot: str) -> None:
        self.cell_label = settings.cell.encode()  # as it stands in headers
        self.exchanges: dict[int, Exchange] = {}
        self._rng = random.Random(settings.seed)  # noqa: S311 - balance, not secrecy
        self._dice = random.Random(f"{settings.seed}/dither")  # noqa: S311 - apart, so that it moves no other choice
        self._dither_s = 0.0  # when it is next seen to
        self._next_number = 0
        self._state_seq = 0
        self._round_s = 0.0  # when the next round of those that learn in rounds is due
        self._shed: list[Exchange] = []  # out of their queue, to be told so with the next turn
        super().__init__(settings, boot)

    def __repr__(self) -> str:
        return f"<Tier {self.role} {self.settings.cell}: {len(self.targets)} targets, {len(self.exchanges)} open>"

    # -- a request's events, in the order of its life ----------------------------------------------------

    def arrived(self, now_s: float, arrival: Arrival) -> Forward | Wait | Reject:
        """A request has been read whole: forward it, have it wait, or refuse it with nothing counted."""
        endpoint = self.endpoints.get(arrival.endpoint)
        if endpoint is None:
            return self._unknown(arrival)
        if arrival.background:
            return self._explore(now_s, endpoint, arrival)
        if arrival.root:
            self._count_received(now_s, endpoint, arrival)
        endpoint.demand.add(now_s)
        if not (endpoint.configured or endpoint.candidates):
            return self._unknown(arrival)
        if 0 < self.settings.max_in_flight <= len(self.exchanges):
            endpoint.refused += 1
            return Reject(503, "router_full", "this router has as many requests in flight as it may have", 1)
        self._next_number += 1
        exchange = Exchange(self._next_number, arrival, endpoint, now_s)
        if arrival.patience_s:
            exchange.deadline_s = now_s + arrival.patience_s
        if endpoint.rif:
            exchange.load_at_arrival = (endpoint.rif + len(endpoint.queue)) / endpoint.k
        endpoint.estimate(exchange)
        action = self._place(now_s, exchange)
        if isinstance(action, Reject):
            endpoint.refused += 1
        else:
            self.exchanges[exchange.number] = exchange
        return action

    def attempt_started(self, now_s: float, exchange: Exchange) -> None:  # noqa: ARG002 - events carry their time
        """The attempt has its connection; the request is on the way."""
        exchange.move(Phase.WAITING)

    def first_byte(self, now_s: float, exchange: Exchange, status: int) -> None:
        """The first byte of the answer's body is here: the prompt has been read."""
        exchange.move(Phase.STREAMING)
        exchange.first_byte_s = now_s
        candidate = exchange.candidate
        assert candidate is not None
        candidate.prefilled(exchange)
        # A stream may last minutes; that it has begun is enough for a server on trial.
        if candidate.target.health.trial is exchange and status < 500:
            self._went_well(now_s, exchange, candidate)

    def ended(self, now_s: float, exchange: Exchange, status: int, usage: Usage | None, stalled_s: float) -> None:
        """The answer is complete. stalled_s is the client's own slowness, which no curve should learn."""
        candidate = self._release(exchange)
        self._forget(exchange)
        candidate.requests.add(now_s)
        endpoint = exchange.endpoint
        background = exchange.arrival.background
        if usage is not None and not background:
            endpoint.learn(now_s, exchange, usage)
        if status in BUSY_STATUSES:
            candidate.errors.add(now_s)
            self._went_wrong(now_s, exchange, candidate, Failure.BUSY, 0.0)
        elif status >= 500:
            candidate.errors.add(now_s)
            self._went_wrong(now_s, exchange, candidate, Failure.ERROR, 0.0)
        else:
            self._went_well(now_s, exchange, candidate)
        if status < 400:
            if endpoint.mechanism.OBSERVES and not background:
                endpoint.mechanism.observed(now_s, candidate, now_s - exchange.arrived_s)
            self._sample(now_s, exchange, usage, now_s - exchange.arrived_s - stalled_s)
        elif background and status < 500:
            self.explorations[endpoint.name].refused()

    def attempt_failed(
        self,
        now_s: float,
        exchange: Exchange,
        failure: Failure,
        written: bool,
        answered: bool,
        reused: bool,
        retry_after_s: float,
    ) -> RequestAction:
        """The attempt is lost. A retry is safe only while nothing was answered and nothing was done twice."""
        if reused and failure is Failure.CLOSED and not answered:
            return self._retry_unseen(now_s, exchange)
        may = not written or failure in NOT_BEGUN or self.retries(exchange.endpoint).after_sent
        if answered or not may or (written and not exchange.arrival.replayable):
            return self._give_up(now_s, exchange, failure, retry_after_s, answered=answered)
        return self._retry_elsewhere(now_s, exchange, failure, retry_after_s)

    def stalled(self, now_s: float, exchange: Exchange) -> None:
        """The client reads slower than its answer comes: how long it takes is not the server's doing from now on."""
        exchange.stalled_s = min(exchange.stalled_s, now_s)

    def client_gone(self, now_s: float, exchange: Exchange) -> None:  # noqa: ARG002 - events carry their time
        """The client left; nobody's fault, so nothing is learned and no error counted."""
        connecting = exchange.phase is Phase.CONNECTING
        candidate = self._close(exchange)
        if candidate is not None:
            candidate.target.health.undecided(exchange)
            if connecting:
                candidate.on_the_way.not_sent()

    def expired(self, now_s: float, exchange: Exchange, total: bool) -> RequestAction:
        """A phase, or the whole exchange, lasted longer than it may."""
        if exchange.phase is Phase.QUEUED and not total:
            self._close(exchange)
            exchange.endpoint.refused += 1
            words = f"no server of {exchange.endpoint.name} had room in time"
            return Reject(503, "queue_timeout", words, self._retry_after_s(now_s, exchange.endpoint))
        answered = exchange.phase is Phase.STREAMING
        if total:
            return self._give_up(now_s, exchange, Failure.TOTAL_TIMEOUT, 0.0, answered=answered)
        if exchange.phase is Phase.CONNECTING:
            return self._retry_elsewhere(now_s, exchange, Failure.CONNECT_TIMEOUT, 0.0)
        failure = Failure.IDLE_TIMEOUT if answered else Failure.FIRST_BYTE_TIMEOUT
        if not answered and exchange.arrival.replayable and self.retries(exchange.endpoint).after_sent:
            return self._retry_elsewhere(now_s, exchange, failure, 0.0)
        return self._give_up(now_s, exchange, failure, 0.0, answered=answered)

    # -- events of no request ------------------------------------------------------------------------------

    def turn(self, now_s: float) -> Turn | None:
        """There may be room: whose waiting is over, and how. Asked until it is None."""
        if self._shed:
            exchange = self._shed.pop()
            self._forget(exchange)
            exchange.endpoint.refused += 1
            words = f"{exchange.endpoint.name} has more urgent requests waiting than it has room for"
            return Turn(exchange, Reject(503, "queue_shed", words, self._retry_after_s(now_s, exchange.endpoint)))
        waiting = [endpoint for endpoint in self.endpoints.values() if endpoint.queue]
        for endpoint in waiting:
            if not endpoint.candidates:  # not down, which passes, but taken away
                exchange = endpoint.queue.first
                self._close(exchange)
                endpoint.refused += 1
                return Turn(exchange, self._nowhere(now_s, exchange))
        for endpoint in sorted(waiting, key=lambda endpoint: order(endpoint.queue.first)):
            if not endpoint.full:
                forward = self._next_of(now_s, endpoint)
                if forward is not None:
                    return Turn(forward.exchange, forward)
        return None

    def audited(self, now_s: float, open_: tuple[int, ...]) -> Drift:  # noqa: ARG002
        """Compare every count with the exchanges that are really open, and put right what differs."""
        served = frozenset(open_)
        leaked = [exchange for number, exchange in self.exchanges.items() if number not in served]
        for exchange in leaked:
            candidate = self._close(exchange)
            if candidate is not None:
                candidate.target.health.undecided(exchange)
        return Drift(tuple(exchange.number for exchange in leaked), recount(self))

    def timer_fired(self, now_s: float) -> SetTimer:
        """Do the slow work that is due: a step of a curve fit, ejections that end, a round. Asks for the next.

        Work too slow for that is asked for too, and requests of a leaf's own.
        """
        self._tend(now_s)
        if self.role == "root" and now_s >= self._dither_s:
            self._dither_s = now_s + DITHER_BEAT_S
            for endpoint in self.endpoints.values():
                endpoint.explore(now_s, self._dice)
        due = []
        for name, estimator in self.estimators.items():
            if estimator.due(now_s):
                in_flight = self.in_flight(now_s, self.endpoints[name])
                estimator.begin(now_s, in_flight, self.heard.prior(now_s, name))
            due.append(estimator.work(now_s))
        learning = [endpoint for endpoint in self.endpoints.values() if endpoint.mechanism.wants_rounds()]
        if learning:
            due.append(self._round(now_s, learning))
        explore = self._explorations(now_s)
        due += [self.explorations[name].next_s(now_s) for name in self.estimators]
        return SetTimer(min(due, default=now_s + REST_S), self._programs(now_s), explore)

    def solved(self, now_s: float, endpoint: str, solution: Solution) -> None:  # noqa: ARG002
        """A program was worked out. Whoever asked for it may be gone, or want something else by now."""
        known = self.endpoints.get(endpoint)
        if known is not None:
            known.solved(solution)

    def _explorations(self, now_s: float) -> tuple[Explore, ...]:
        """The requests that a leaf wants made by itself, of endpoints whose curve it learns."""
        wanted = []
        for name in self.estimators:
            explore = self.explorations[name].due(now_s, self.endpoints[name], self.heard)
            if explore is not None:
                wanted.append(explore)
        return tuple(wanted)

    def _programs(self, now_s: float) -> tuple[Solve, ...]:
        """What the mechanisms want solved."""
        wanted = []
        for name, endpoint in self.endpoints.items():
            program = endpoint.program(now_s, self.settings.cell)
            if program is not None:
                wanted.append(Solve(name, program))
        return tuple(wanted)

    def _round(self, now_s: float, learning: list[Endpoint]) -> float:
        """A round of the mechanisms that learn in rounds, if it is due. When the next one is."""
        if now_s >= self._round_s - EARLY_S:
            for endpoint in learning:
                endpoint.round(now_s)
            # A steady beat; rounds that were missed are not made up for.
            self._round_s += ROUND_S
            if self._round_s <= now_s:
                self._round_s = now_s + ROUND_S
        return self._round_s

    # -- what others may read ------------------------------------------------------------------------------

    def timeouts(self, endpoint: Endpoint) -> Timeouts:
        """The time limits of an endpoint's requests."""
        return endpoint.settings.timeouts or self.settings.timeouts

    def retries(self, endpoint: Endpoint) -> RetrySettings:
        """When an endpoint's requests are tried again."""
        return endpoint.settings.retries or self.settings.retries

    def keeps_back(self, exchange: Exchange, status: int) -> bool:
        """Whether an answer with this status is no end yet, but an attempt that failed; asked of errors only.

        One that says busy always is, because it may say for how long.
        """
        if status in BUSY_STATUSES:
            return True
        retries = self.retries(exchange.endpoint)
        return (
            status >= 500
            and retries.after_sent
            and exchange.attempts < retries.attempts
            and exchange.arrival.replayable
        )

    def in_flight(self, now_s: float, endpoint: Endpoint) -> InFlight:
        """What an estimator may know of users' requests that have not ended; of very many, every so manieth."""
        each = len(self.exchanges) // IN_FLIGHT_LOOKED_AT + 1
        loads: list[float] = []
        ages_s: list[float] = []
        for exchange in islice(self.exchanges.values(), 0, None, each):
            if exchange.endpoint is endpoint and not exchange.arrival.background:
                loads.append(exchange.load_at_arrival)
                ages_s.append(min(now_s, exchange.stalled_s) - exchange.arrived_s)
        return InFlight(loads, ages_s, float(each))

    def routable(self) -> bool:
        """Whether any endpoint could be served now."""
        return any(endpoint.routable for endpoint in self.endpoints.values())

    def models(self) -> list[str]:
        """Names of the endpoints that could be served now, sorted."""
        return sorted(name for name, endpoint in self.endpoints.items() if endpoint.routable)

    def report(self, now_s: float) -> State:
        """A leaf's state line, every curve included (the stream leaves out those its listener has)."""
        self._state_seq += 1
        return State(
            boot=self.boot,
            cell=self.settings.cell,
            seq=self._state_seq,
            sources=self.distances.read(now_s),
            endpoints={name: self._report_endpoint(now_s, endpoint) for name, endpoint in self.endpoints.items()},
        )

    def _report_endpoint(self, now_s: float, endpoint: Endpoint) -> EndpointState:
        estimator = self.estimators.get(endpoint.name)
        curve = estimator.curve if estimator else None
        tail = estimator.tail if estimator else None
        work_s = 0.0
        for candidate in endpoint.routable:
            work_s += candidate.work_s
        for exchange in endpoint.queue:
            work_s += exchange.prefill_s + exchange.decode_s
        errors = 0.0
        requests = 0.0
        for candidate in endpoint.candidates.values():
            errors += candidate.errors.read(now_s)
            requests += candidate.requests.read(now_s)
        return EndpointState(
            rif=endpoint.rif + len(endpoint.queue),
            k=endpoint.k,
            queued_s=work_s / endpoint.k if endpoint.k else 0.0,
            errors=round(errors, 3),
            requests=round(requests, 3),
            received=dict(endpoint.received),
            arrivals=endpoint.arrivals.read(now_s),
            curve_version=curve.version if curve else 0,
            curve=curve,
            tail_version=tail.version if tail else 0,
            tail=tail,
            prefill_s_per_token=endpoint.prefill.told(now_s),
        )

    def news(self, now_s: float, target: str, address: str) -> News:
        """What a root tells a leaf of a cell: of the endpoints which that leaf reports, at most MAX_ENDPOINTS."""
        known = self.targets.get(target)
        candidates = known.candidates if known is not None else []
        told = [
            (self._endpoint_news(now_s, address, candidate), candidate.endpoint.name)
            for candidate in candidates
            if address in candidate.reports
        ]
        if len(told) > MAX_ENDPOINTS:
            told = nlargest(MAX_ENDPOINTS, told, key=lambda one: one[0].rate_rps)
        return News(self.boot, {name: news for news, name in told})

    def _endpoint_news(self, now_s: float, address: str, candidate: Candidate) -> EndpointNews:
        """Nothing is wanted of a leaf that was taken out: it must not try what nobody may send it."""
        endpoint = candidate.endpoint
        rate_rps = 0.0 if address in candidate.target.drained else round(endpoint.demand.rate(now_s), 3)
        prior = endpoint.priors.of(now_s, candidate.name, endpoint.candidates.values())
        return EndpointNews(rate_rps=rate_rps, prior=prior)

    # -- where a request goes ------------------------------------------------------------------------------

    def _place(self, now_s: float, exchange: Exchange) -> Forward | Wait | Reject:
        """Send it to a target, have it wait for one, or say why neither."""
        endpoint = exchange.endpoint
        if not (endpoint.full or (endpoint.queue and endpoint.queue.ahead_of(exchange))):
            choice = endpoint.choose(now_s, exchange, self._rng)
            if choice is not None:
                return self._send(now_s, exchange, *choice)
        if self.role == "leaf" and self.settings.queue.size and endpoint.room_will_come(now_s, exchange):
            return self._queue_up(now_s, exchange)
        return self._nowhere(now_s, exchange)

    def _explore(self, now_s: float, endpoint: Endpoint, arrival: Arrival) -> Forward | Reject:
        """A request of this leaf's own: sent where room is left for a user's, or not at all. It is nobody's demand."""
        if 0 < self.settings.max_in_flight <= len(self.exchanges) + 1:
            return Reject(503, "router_full", "this router has hardly room for its users' requests", 1)
        if 0 < endpoint.settings.limits.max_in_flight <= endpoint.in_flight + 1:
            return Reject(503, "endpoint_full", f"{endpoint.name} has hardly room for its users' requests", 1)
        self._next_number += 1
        exchange = Exchange(self._next_number, arrival, endpoint, now_s)
        exchange.load_at_arrival = endpoint.rif / endpoint.k if endpoint.rif else 0.0
        exchange.prompt_tokens = arrival.prompt_tokens
        exchange.output_tokens = float(arrival.max_output_tokens)
        exchange.prefill_s = PREFILL_S_PER_TOKEN * exchange.prompt_tokens
        exchange.decode_s = DECODE_S_PER_TOKEN * exchange.output_tokens
        choice = endpoint.choose(now_s, exchange, self._rng)
        if choice is None:
            return self._nowhere(now_s, exchange)
        self.exchanges[exchange.number] = exchange
        endpoint.explored += 1
        return self._send(now_s, exchange, *choice)

    def _send(self, now_s: float, exchange: Exchange, candidate: Candidate, rule: str) -> Forward:
        target = candidate.target
        address = target.next_address(candidate.serving, exchange.tried)
        assert address is not None
        exchange.rule = rule
        exchange.address = address
        exchange.attempts += 1
        if target.health.standing is not Standing.IN:
            target.health.sent(exchange)
        candidate.take(now_s, exchange)
        return Forward(exchange, address, rule)

    def _unknown(self, arrival: Arrival) -> Reject:
        if arrival.root or not self.routable():
            # Nobody has said yet what is served, or a root has heard of it and not yet that it is gone: another cell
            # may serve it, and a client would not try a 404 again.
            kind = "cell" if self.role == "root" else "server"
            return Reject(503, f"no_routable_{kind}", f"no {kind} answers at present", 1)
        return Reject(404, "unknown_model", f"the model {shortened(arrival.endpoint)!r} is not served here")

    def _nowhere(self, now_s: float, exchange: Exchange) -> Reject:
        endpoint = exchange.endpoint
        if endpoint.full:
            words = f"{endpoint.name} has {endpoint.in_flight} requests in flight, its limit"
            return Reject(503, "endpoint_full", words, 1)
        kind = "cell" if self.role == "root" else "server"
        if not endpoint.routable or exchange.tried:
            return Reject(503, f"no_routable_{kind}", f"no {kind} can serve {endpoint.name} at present", 1)
        held_s = min(candidate.busy_until_s for candidate in endpoint.routable) - now_s
        if held_s > 0.0:
            return Reject(503, f"all_{kind}s_busy", f"every {kind} of {endpoint.name} says it is busy", ceil(held_s))
        return Reject(503, f"all_{kind}s_full", f"every {kind} of {endpoint.name} is at its limit", 1)

    # -- waiting for room (leaves only) --------------------------------------------------------------------

    def _queue_up(self, now_s: float, exchange: Exchange) -> Wait | Reject:
        endpoint, queue = exchange.endpoint, exchange.endpoint.queue
        wait_s = endpoint.expected_wait_s(now_s, queue.ahead_of(exchange))
        retry_after_s = max(1, ceil(wait_s))
        if now_s + wait_s > exchange.deadline_s:
            words = f"{endpoint.name} would have room in {wait_s:.1f} s, later than this request can wait"
            return Reject(503, "queue_deadline", words, retry_after_s)
        if len(queue) >= self.settings.queue.size:
            if queue.last.arrival.priority >= exchange.arrival.priority:
                return Reject(503, "queue_full", f"{len(queue)} requests wait for {endpoint.name}", retry_after_s)
            self._shed.append(queue.last)
            queue.remove(queue.last)
        exchange.move(Phase.QUEUED)
        exchange.queued_s = now_s
        queue.add(exchange)
        endpoint.queued += 1
        return Wait(exchange, min(now_s + self.settings.queue.max_wait_s, exchange.deadline_s))

    def _next_of(self, now_s: float, endpoint: Endpoint) -> Forward | None:
        for exchange in endpoint.queue:
            choice = endpoint.choose(now_s, exchange, self._rng)
            if choice is not None:
                endpoint.queue.remove(exchange)
                exchange.move(Phase.CONNECTING)
                endpoint.waited_s += now_s - exchange.queued_s
                return self._send(now_s, exchange, *choice)
            if not exchange.tried:
                return None  # nobody has room, for those behind it neither
        return None

    def _retry_after_s(self, now_s: float, endpoint: Endpoint) -> int:
        return max(1, ceil(endpoint.expected_wait_s(now_s, len(endpoint.queue))))

    # -- after a failure -----------------------------------------------------------------------------------

    def _retry_unseen(self, now_s: float, exchange: Exchange) -> RequestAction:
        """A pooled connection that the server had closed meanwhile: it never saw the request."""
        candidate = exchange.candidate
        assert candidate is not None
        if candidate not in exchange.endpoint.routable or not candidate.target.takes(exchange.address):
            return self._retry_elsewhere(now_s, exchange, Failure.UNSEEN, 0.0)
        exchange.move(Phase.CONNECTING)
        return Forward(exchange, exchange.address, "stale-connection", fresh=True)

    def _retry_elsewhere(
        self, now_s: float, exchange: Exchange, failure: Failure, retry_after_s: float
    ) -> RequestAction:
        exchange.move(Phase.CONNECTING)
        candidate = self._release(exchange)
        if failure in NOT_SENT:
            candidate.on_the_way.not_sent()
        # What answered for a whole cell need not be asked at another of its leaves.
        met = candidate.target.addresses if failure in ANSWERS else (exchange.address,)
        exchange.tried = (*exchange.tried, *met)
        self._went_wrong(now_s, exchange, candidate, failure, retry_after_s)
        if self._may_try_again(exchange, failure):
            action = self._place(now_s, exchange)
            if not isinstance(action, Reject):
                exchange.endpoint.retried += 1
                return action
        self._count_failure(now_s, candidate, failure)
        self._forget(exchange)
        return _refusal(failure, retry_after_s)

    def _may_try_again(self, exchange: Exchange, failure: Failure) -> bool:
        """Attempts are left, and so is budget for one that costs servers work."""
        endpoint = exchange.endpoint
        retries = self.retries(endpoint)
        if exchange.attempts >= retries.attempts or exchange.arrival.background:
            return False
        if failure in REACHED_NOBODY or exchange.retrying:
            return True
        # This exchange is not in flight at the moment, but it is one of those the budget is a share of.
        if endpoint.retrying >= max(retries.budget_min, retries.budget * (endpoint.in_flight + 1)):
            endpoint.retries_denied += 1
            return False
        exchange.retrying = True
        endpoint.retrying += 1
        return True

    def _give_up(
        self, now_s: float, exchange: Exchange, failure: Failure, retry_after_s: float, *, answered: bool
    ) -> Reject | Cancel:
        candidate = self._close(exchange)
        if candidate is not None:
            self._went_wrong(now_s, exchange, candidate, failure, retry_after_s)
            self._count_failure(now_s, candidate, failure)
        return Cancel(FAILURES[failure][1]) if answered else _refusal(failure, retry_after_s)

    def _went_well(self, now_s: float, exchange: Exchange, candidate: Candidate) -> None:
        candidate.busy = 0
        if candidate.target.health.succeeded(now_s, exchange):
            candidate.target.reweigh(now_s)
            self._settle(candidate.target)

    def _went_wrong(
        self, now_s: float, exchange: Exchange, candidate: Candidate, failure: Failure, retry_after_s: float
    ) -> None:
        """What a failed attempt says of its target."""
        target = candidate.target
        if failure not in NO_ILL_HEALTH:
            if target.health.failed(exchange):
                self._eject(now_s, target)
            return
        target.health.undecided(exchange)
        if failure is Failure.BUSY:
            # A leaf rounds what it says up to whole seconds; its state says sooner when it has room again.
            candidate.hold(now_s, retry_after_s if self.role == "leaf" else 0.0)
        elif failure in DOWN_AT_ONCE:
            self._change_address(now_s, target.name, exchange.address, up=False)

    def _sample(self, now_s: float, exchange: Exchange, usage: Usage | None, latency_s: float) -> None:
        """What a request that went well says of this cell's latency, if this is a leaf that learns it."""
        name = exchange.endpoint.name
        estimator = self.estimators.get(name)
        if estimator is None:
            return
        exploration = self.explorations[name]
        if exchange.arrival.background:
            usual_s = exploration.as_usual(latency_s, exchange, usage)
            estimator.explored(now_s, exchange.arrived_s, exchange.load_at_arrival, usual_s)
        else:
            exploration.learn(exchange, usage)
            estimator.add(now_s, exchange.arrived_s, exchange.load_at_arrival, latency_s)

    # -- counting ------------------------------------------------------------------------------------------

    def _release(self, exchange: Exchange) -> Candidate:
        candidate = exchange.candidate
        assert candidate is not None
        candidate.give_back(exchange)
        return candidate

    def _forget(self, exchange: Exchange) -> None:
        exchange.move(Phase.DONE)
        if exchange.retrying:
            exchange.endpoint.retrying -= 1
        del self.exchanges[exchange.number]

    def _close(self, exchange: Exchange) -> Candidate | None:
        """End an exchange in whatever phase; where it was, if it was anywhere."""
        candidate = None
        if exchange.candidate is not None:
            candidate = self._release(exchange)
        elif exchange in self._shed:
            self._shed.remove(exchange)
        else:
            exchange.endpoint.queue.remove(exchange)
        self._forget(exchange)
        return candidate

    def _count_failure(self, now_s: float, candidate: Candidate, failure: Failure) -> None:
        candidate.requests.add(now_s)
        if failure is not Failure.NO_ROOM:
            candidate.errors.add(now_s)

    def _count_received(self, now_s: float, endpoint: Endpoint, arrival: Arrival) -> None:
        endpoint.arrivals.count(now_s, arrival.source)
        received, root = endpoint.received, arrival.root
        received[root] = received.pop(root, 0) + 1  # the last heard of stays last
        if len(received) > MAX_ROOTS_REMEMBERED:
            del received[next(iter(received))]


def _refusal(failure: Failure, retry_after_s: float) -> Reject:
    status, code, words, own_s = FAILURES[failure]
    return Reject(status, code, words, max(own_s, ceil(retry_after_s)))
