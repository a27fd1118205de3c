"""A tier: root and leaf are two configurations of it.

It decides, the driver acts. Every public method that changes it is one of the events of `core.events`, and none
calls another, so a recorder hears each once; time comes in with the event, chance from the seed. So a live run
that was recorded can be run again offline, and the simulator runs this very code.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from dlbctl.core.audit import audit
from dlbctl.core.endpoint import Endpoint
from dlbctl.core.errors import ConfigError
from dlbctl.core.estimator import REST_S, Estimator
from dlbctl.core.events import (
    AdminState,
    Arrival,
    Cancel,
    Drift,
    EndpointState,
    Failure,
    Forward,
    Reject,
    RequestAction,
    SetTimer,
    State,
    Usage,
)
from dlbctl.core.exchange import Exchange, Phase
from dlbctl.core.policy import Policy
from dlbctl.core.settings import (
    DEFAULT_POLICY,
    EndpointSettings,
    TargetSettings,
    TierSettings,
    Timeouts,
)
from dlbctl.core.target import Candidate, Target

MAX_ATTEMPTS = 3
MAX_ROOTS_REMEMBERED = 64

# What the client is told when an attempt fails for good: status, code, words.
FAILURES: dict[Failure, tuple[int, str, str] | tuple[int, str, str, int]] = {
    Failure.NO_ROOM: (503, "no_room", "no server that was asked has room for the request at present", 1),
    Failure.REFUSED: (502, "upstream_unreachable", "no connection to the inference server"),
    Failure.CONNECT_TIMEOUT: (
        504,
        "upstream_connect_timeout",
        "connecting to the inference server took too long",
    ),
    Failure.CLOSED: (502, "upstream_closed", "the inference server closed the connection before it answered"),
    Failure.PROTOCOL: (502, "upstream_protocol_error", "the inference server's answer is not valid HTTP"),
    Failure.FIRST_BYTE_TIMEOUT: (
        504,
        "upstream_first_byte_timeout",
        "the inference server did not begin to answer in time",
    ),
    Failure.IDLE_TIMEOUT: (504, "upstream_idle_timeout", "the inference server fell silent"),
    Failure.TOTAL_TIMEOUT: (504, "total_timeout", "the request took longer than it may"),
}


class Tier:
    """One tier's routing state.

    boot: identifies this run of the router to its peers. `exchanges` holds what is open, by number.
    """

    def __init__(self, settings: TierSettings, boot: str) -> None:
        self.settings = settings
        self.boot = boot
        self.role = settings.role
        self.cell_label = settings.cell.encode()  # as it stands in headers
        self.targets: dict[str, Target] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.exchanges: dict[int, Exchange] = {}
        self.estimators: dict[str, Estimator] = {}
        self._drained: set[tuple[str, str]] = set()  # target and address, or an empty address for all of it
        self._rng = random.Random(settings.seed)  # noqa: S311 - balance, not secrecy
        self._next_number = 0
        self._state_seq = 0
        self.endpoints_changed(settings.endpoints)
        self.targets_changed(settings.targets)

    def __repr__(self) -> str:
        return f"<Tier {self.role} {self.settings.cell}: {len(self.targets)} targets, {len(self.exchanges)} open>"

    # -- a request's events, in the order of its life ----------------------------------------------------

    def arrived(self, now_s: float, arrival: Arrival) -> Forward | Reject:
        """A request has been read whole: forward it, or refuse it with nothing counted."""
        endpoint = self.endpoints.get(arrival.endpoint)
        if endpoint is None:
            return self._unknown(arrival)
        if arrival.root:
            self._count_received(endpoint, arrival.root)
        if not (endpoint.configured or endpoint.candidates):
            return self._unknown(arrival)
        limit = endpoint.settings.limits.max_in_flight
        if limit and endpoint.in_flight >= limit:
            return Reject(503, "endpoint_full", f"{endpoint.name} has {limit} requests in flight, its limit", 1)
        self._next_number += 1
        exchange = Exchange(self._next_number, arrival, endpoint, now_s)
        if endpoint.rif:
            exchange.load_at_arrival = endpoint.rif / endpoint.k
        endpoint.estimate(exchange)
        action = self._forward(now_s, exchange)
        if exchange.attempts:
            self.exchanges[exchange.number] = exchange
        return action

    def attempt_started(self, now_s: float, exchange: Exchange) -> None:  # noqa: ARG002 - events carry their time
        """The attempt has its connection; the request is on the way."""
        exchange.move(Phase.WAITING)

    def first_byte(self, now_s: float, exchange: Exchange) -> None:  # noqa: ARG002 - events carry their time
        """The first byte of the answer's body is here: the prompt has been read."""
        exchange.move(Phase.STREAMING)
        assert exchange.candidate is not None
        exchange.candidate.prefilled(exchange)

    def ended(self, now_s: float, exchange: Exchange, status: int, usage: Usage | None, stalled_s: float) -> None:
        """The answer is complete. stalled_s is the client's own slowness, which no curve should learn."""
        candidate = self._close(exchange)
        candidate.requests.add(now_s)
        if status >= 500:
            candidate.errors.add(now_s)
        if usage is not None:
            exchange.endpoint.learn(exchange.arrival, usage)
        if status < 400:
            estimator = self.estimators.get(exchange.endpoint.name)
            if estimator is not None:
                estimator.add(now_s, exchange.load_at_arrival, now_s - exchange.arrived_s - stalled_s)

    def attempt_failed(
        self, now_s: float, exchange: Exchange, failure: Failure, written: bool, answered: bool, reused: bool
    ) -> RequestAction:
        """The attempt is lost. A retry is safe only while nothing was answered and nothing was done twice."""
        if reused and failure is Failure.CLOSED and not answered:
            return self._retry_unseen(now_s, exchange)
        if not written:
            return self._retry_elsewhere(now_s, exchange, failure)
        return self._give_up(now_s, exchange, failure, answered=answered)

    def client_gone(self, now_s: float, exchange: Exchange) -> None:  # noqa: ARG002 - events carry their time
        """The client left; nobody's fault, so nothing is learned and no error counted."""
        connecting = exchange.phase is Phase.CONNECTING
        candidate = self._close(exchange)
        if connecting:
            candidate.on_the_way.not_sent()

    def expired(self, now_s: float, exchange: Exchange, total: bool) -> RequestAction:
        """A phase, or the whole exchange, lasted longer than it may."""
        answered = exchange.phase is Phase.STREAMING
        if total:
            return self._give_up(now_s, exchange, Failure.TOTAL_TIMEOUT, answered=answered)
        if exchange.phase is Phase.CONNECTING:
            return self._retry_elsewhere(now_s, exchange, Failure.CONNECT_TIMEOUT)
        failure = Failure.IDLE_TIMEOUT if answered else Failure.FIRST_BYTE_TIMEOUT
        return self._give_up(now_s, exchange, failure, answered=answered)

    # -- what the tier hears of its surroundings ---------------------------------------------------------

    def state_reported(self, now_s: float, target: str, address: str, state: State, rtt_s: float) -> None:
        """A leaf of a cell reported; endpoints nobody configured are routed with the default policy."""
        known = self.targets.get(target)
        if known is None or address not in known.addresses:
            return  # it was removed while the line was on its way
        came_up = address in known.down
        known.mark(address, up=True)
        known.rtt_s[address] = rtt_s
        if came_up:
            self._settle(known)
        for name, endpoint_state in state.endpoints.items():
            self._endpoint_reported(now_s, known, address, name, endpoint_state)

    def address_changed(self, now_s: float, target: str, address: str, up: bool) -> None:  # noqa: ARG002
        """An address began or ceased to answer."""
        self._change_address(target, address, up=up)

    def models_learned(self, now_s: float, target: str, models: tuple[str, ...]) -> None:  # noqa: ARG002
        """A server said what it serves; a configured list is not overruled."""
        known = self.targets.get(target)
        if known is None or known.settings.endpoints or known.models == models:
            return
        known.models = models
        self._match(known)

    def targets_changed(self, targets: Iterable[TargetSettings]) -> None:
        """Replace the set of targets. Open exchanges keep the target they were sent to until they end."""
        wanted = {settings.name: settings for settings in targets}
        for name, target in list(self.targets.items()):
            if wanted.get(name) != target.settings:
                self._remove(target)
        for name, settings in wanted.items():
            if name not in self.targets:
                self.targets[name] = Target(settings)
                self._drain(self.targets[name])
                self._match(self.targets[name])
        for endpoint in self.endpoints.values():
            endpoint.settle()

    def endpoints_changed(self, endpoints: Iterable[EndpointSettings]) -> None:
        """Replace the configured endpoints; live policy overrides stay."""
        wanted = {settings.name: settings for settings in endpoints}
        for name, endpoint in self.endpoints.items():
            if name in wanted or endpoint.configured:
                endpoint.configure(wanted.get(name) or EndpointSettings(name=name), configured=name in wanted)
        for name in [name for name in wanted if name not in self.endpoints]:
            self._add_endpoint(wanted[name], configured=True)

    def policy_set(self, now_s: float, endpoint: str, policy: str) -> None:  # noqa: ARG002
        """Switch an endpoint's policy, or revert it with an empty one. ConfigError for what there is not."""
        known = self.endpoints.get(endpoint)
        if known is None:
            raise ConfigError(f"there is no endpoint {endpoint!r}", hint=f"one of: {', '.join(self.endpoints)}")
        known.set_policy(Policy.parse(policy) if policy else None)

    def admin_set(self, now_s: float, target: str, address: str, state: AdminState) -> None:  # noqa: ARG002
        """Take an address out, or put it back; "" for a whole target. ConfigError for what there is not.

        It holds whatever the health of the address, and for a target of that name that comes later.
        """
        known = self.targets.get(target)
        if known is None:
            raise ConfigError(f"there is no target {target!r}", hint=f"one of: {', '.join(self.targets)}")
        if address and address not in known.addresses:
            raise ConfigError(f"{target} has no address {address!r}", hint=f"one of: {', '.join(known.addresses)}")
        if state is AdminState.DRAIN:
            self._drained.add((target, address))
        elif address:
            self._drained.discard((target, address))
        else:
            self._drained = {key for key in self._drained if key[0] != target}
        self._drain(known)
        self._settle(known)

    def audited(self, now_s: float, open_: tuple[int, ...]) -> Drift:  # noqa: ARG002
        """Compare every count with the exchanges that are really open, and put right what differs."""
        return audit(self, frozenset(open_))

    def timer_fired(self, now_s: float) -> SetTimer:
        """Do the piece of slow work that is due (one step of a curve fit) and ask for the next."""
        due = [estimator.work(now_s) for estimator in self.estimators.values()]
        return SetTimer(min(due, default=now_s + REST_S))

    # -- what others may read ------------------------------------------------------------------------------

    def timeouts(self, endpoint: Endpoint) -> Timeouts:
        """The time limits of an endpoint's requests."""
        return endpoint.settings.timeouts or self.settings.timeouts

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
            seq=self._state_seq,
            endpoints={name: self._report_endpoint(now_s, endpoint) for name, endpoint in self.endpoints.items()},
        )

    def _report_endpoint(self, now_s: float, endpoint: Endpoint) -> EndpointState:
        estimator = self.estimators.get(endpoint.name)
        curve = estimator.curve if estimator else None
        work_s = sum(candidate.work_s for candidate in endpoint.routable)
        return EndpointState(
            rif=endpoint.rif,
            k=endpoint.k,
            queued_s=work_s / endpoint.k if endpoint.k else 0.0,
            errors=round(sum(c.errors.read(now_s) for c in endpoint.candidates.values()), 3),
            requests=round(sum(c.requests.read(now_s) for c in endpoint.candidates.values()), 3),
            received=dict(endpoint.received),
            curve_version=curve.version if curve else 0,
            curve=curve,
        )

    # -- inside ------------------------------------------------------------------------------------------

    def _forward(self, now_s: float, exchange: Exchange) -> Forward | Reject:
        choice = exchange.endpoint.choose(exchange, self._rng)
        address = choice[0].target.next_address(exchange.tried) if choice else None
        if choice is None or address is None:
            return self._nowhere(exchange)
        candidate, exchange.rule = choice
        exchange.address = address
        exchange.attempts += 1
        candidate.take(now_s, exchange)
        return Forward(exchange, address, exchange.rule)

    def _unknown(self, arrival: Arrival) -> Reject:
        if not self.routable():
            # Nobody has said yet what is served; a client would not try a 404 again.
            kind = "cell" if self.role == "root" else "server"
            return Reject(503, f"no_routable_{kind}", f"no {kind} answers at present", 1)
        return Reject(404, "unknown_model", f"the model {arrival.endpoint!r} is not served here")

    def _nowhere(self, exchange: Exchange) -> Reject:
        kind = "cell" if self.role == "root" else "server"
        if exchange.endpoint.routable and not exchange.tried:
            return Reject(503, "all_servers_full", f"every server of {exchange.endpoint.name} is at its limit", 1)
        return Reject(503, f"no_routable_{kind}", f"no {kind} can serve {exchange.endpoint.name} at present", 1)

    def _retry_unseen(self, now_s: float, exchange: Exchange) -> RequestAction:
        """A pooled connection that the server had closed meanwhile: it never saw the request."""
        candidate = exchange.candidate
        assert candidate is not None
        if candidate not in exchange.endpoint.routable or exchange.address in candidate.target.shut:
            return self._retry_elsewhere(now_s, exchange, Failure.CLOSED)
        exchange.move(Phase.CONNECTING)
        return Forward(exchange, exchange.address, "stale-connection", fresh=True)

    def _retry_elsewhere(self, now_s: float, exchange: Exchange, failure: Failure) -> RequestAction:
        exchange.move(Phase.CONNECTING)
        candidate = self._release(exchange)
        candidate.on_the_way.not_sent()
        exchange.tried = (*exchange.tried, exchange.address)
        if failure is Failure.REFUSED:
            self._change_address(candidate.target.name, exchange.address, up=False)
        if exchange.attempts < MAX_ATTEMPTS:
            action = self._forward(now_s, exchange)
            if isinstance(action, Forward):
                return action
        self._count_outcome(now_s, candidate, failed=failure is not Failure.NO_ROOM)
        self._forget(exchange)
        return Reject(*FAILURES[failure])

    def _give_up(self, now_s: float, exchange: Exchange, failure: Failure, *, answered: bool) -> Reject | Cancel:
        candidate = self._close(exchange)
        self._count_outcome(now_s, candidate, failed=True)
        return Cancel(FAILURES[failure][1]) if answered else Reject(*FAILURES[failure])

    def _release(self, exchange: Exchange) -> Candidate:
        candidate = exchange.candidate
        assert candidate is not None
        candidate.give_back(exchange)
        return candidate

    def _close(self, exchange: Exchange) -> Candidate:
        candidate = self._release(exchange)
        self._forget(exchange)
        return candidate

    def _forget(self, exchange: Exchange) -> None:
        exchange.move(Phase.DONE)
        del self.exchanges[exchange.number]

    def _count_outcome(self, now_s: float, candidate: Candidate, *, failed: bool) -> None:
        candidate.requests.add(now_s)
        if failed:
            candidate.errors.add(now_s)

    def _count_received(self, endpoint: Endpoint, root: str) -> None:
        received = endpoint.received
        received[root] = received.pop(root, 0) + 1  # the last heard of stays last
        if len(received) > MAX_ROOTS_REMEMBERED:
            del received[next(iter(received))]

    def _add_endpoint(self, settings: EndpointSettings, *, configured: bool) -> Endpoint:
        endpoint = Endpoint(settings, DEFAULT_POLICY[self.role], configured=configured)
        self.endpoints[settings.name] = endpoint
        if self.role == "leaf":
            self.estimators[settings.name] = Estimator(random.Random(self.settings.seed))  # noqa: S311
        return endpoint

    def _endpoint_reported(self, now_s: float, target: Target, address: str, name: str, state: EndpointState) -> None:
        endpoint = self.endpoints.get(name) or self._add_endpoint(EndpointSettings(name=name), configured=False)
        candidate = endpoint.candidates.get(target.name)
        if candidate is None:
            candidate = self._add_candidate(endpoint, target)
        before = (candidate.k, candidate.curve)
        candidate.report(now_s, address, state, self.boot)
        if before == (candidate.k, candidate.curve):
            endpoint.touch(candidate)
        else:
            endpoint.settle()

    def _add_candidate(self, endpoint: Endpoint, target: Target) -> Candidate:
        candidate = Candidate(endpoint, target)
        if self.role == "root":
            candidate.k = 0.0  # until its leaves have told how many servers it has
        endpoint.candidates[target.name] = candidate
        target.candidates.append(candidate)
        return candidate

    def _match(self, target: Target) -> None:
        """Make a server's candidates those of the models it serves (a cell's come with its reports)."""
        if self.role == "root":
            return
        served = set(target.models)
        for candidate in list(target.candidates):
            if candidate.endpoint.name not in served:
                target.candidates.remove(candidate)
                del candidate.endpoint.candidates[target.name]
                candidate.endpoint.settle()
        for name in sorted(served):
            endpoint = self.endpoints.get(name) or self._add_endpoint(EndpointSettings(name=name), configured=False)
            if target.name not in endpoint.candidates:
                self._add_candidate(endpoint, target)
            endpoint.settle()

    def _change_address(self, target: str, address: str, *, up: bool) -> None:
        known = self.targets.get(target)
        if known is None or address not in known.addresses or (address not in known.down) == up:
            return
        if up:
            known.mark(address, up=True)
        else:
            known.mark(address, up=False)
            known.rtt_s.pop(address, None)
            for candidate in known.candidates:
                candidate.forget(address)
        self._settle(known)

    def _drain(self, target: Target) -> None:
        whole = (target.name, "") in self._drained
        target.drain(frozenset(a for a in target.addresses if whole or (target.name, a) in self._drained))

    def _remove(self, target: Target) -> None:
        del self.targets[target.name]
        for address in target.addresses:
            target.mark(address, up=False)
        for candidate in target.candidates:
            del candidate.endpoint.candidates[target.name]
            candidate.endpoint.settle()

    def _settle(self, target: Target) -> None:
        for candidate in target.candidates:
            candidate.endpoint.settle()
