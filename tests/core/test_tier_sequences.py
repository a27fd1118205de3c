"""Any order of events: counts stay true, limits hold, nothing goes where it must not, and a replay does the same.

Two ways to find orders of events: hypothesis, whose failures come out short, and long random walks, which get
to the busy states that its short sequences seldom reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from dlbctl.core.curve import Curve
from dlbctl.core.endpoint import Endpoint
from dlbctl.core.events import (
    AdminState,
    Arrival,
    Drift,
    EndpointState,
    Event,
    Failure,
    Forward,
    Probe,
    Reject,
    RequestAction,
    Solve,
    State,
    Usage,
    Wait,
)
from dlbctl.core.exchange import Exchange, Phase
from dlbctl.core.health import Standing
from dlbctl.core.news import EndpointNews, News
from dlbctl.core.offline import VERSION, Action, Entry, Header, outcome, replay
from dlbctl.core.programs import NetworkLatencySolution
from dlbctl.core.settings import (
    EndpointSettings,
    HealthSettings,
    Limits,
    QueueSettings,
    RetrySettings,
    Role,
    TargetSettings,
    TierSettings,
    Timeouts,
)
from dlbctl.core.target import Candidate, Target
from dlbctl.router.eventlog import RecordedTier
from tests.core.views import POLICIES

MODELS = ("m0", "m1", "m2")
CURVE = Curve(a=0.8, b=0.096, c=6.0, s=1.5, version=3, samples=50.0, sd_log_gradient=0.1)
BOOT = "b007"

OPEN = (Phase.QUEUED, Phase.CONNECTING, Phase.WAITING, Phase.STREAMING)

small = st.integers(0, 7)


def server(number: int, variant: int) -> TargetSettings:
    """Servers are replaced by ones of the same name and address that differ in weight, slots or models."""
    endpoints = ((), MODELS[:1], MODELS[:2], MODELS)[variant % 4]
    return TargetSettings(
        f"t{number}", (f"http://h{number}:1",), endpoints, (0.5, 1.0, 2.0)[variant % 3], (0, 2, 3)[variant % 3]
    )


def cell(number: int, variant: int) -> TargetSettings:
    return TargetSettings(f"t{number}", tuple(f"http://h{number}:{leaf}" for leaf in range(1 + variant % 3)))


class Sequences(RuleBasedStateMachine):
    """Drives a recorded tier the way routers do, and checks it after each step."""

    role: ClassVar[Role]

    def __init__(self) -> None:
        super().__init__()
        make = server if self.role == "leaf" else cell
        settings = TierSettings(
            self.role,
            "here",
            tuple(make(n, n + 1) for n in range(3)),
            (
                EndpointSettings("m0", limits=Limits(5)),
                EndpointSettings("m1", retries=RetrySettings(attempts=4, after_sent=True)),
            ),
            seed=7,
            max_in_flight=40,
            retries=RetrySettings(budget=0.0, budget_min=2),
            health=HealthSettings(failures=3, eject_s=1.0, slow_start_s=3.0),
            queue=QueueSettings(size=3, max_wait_s=5.0),
        )
        self.lines = [msgspec.json.encode(Header(VERSION, 0, BOOT, settings)) + b"\n"]
        self.tier = RecordedTier(settings, BOOT, self.note)
        self.now_s = 100.0
        self.received = 0
        self.wanted: list[Solve] = []
        self.sent_to: dict[int, list[str]] = {}
        self.seen_targets: list[Target] = []
        self.seen_candidates: list[Candidate] = []
        self.recover()

    def note(self, at_s: float, event: Event, action: Action | None) -> None:
        self.lines.append(msgspec.json.encode(Entry(at_s, event, outcome(action))) + b"\n")

    # -- requests ----------------------------------------------------------------------------------------

    @rule(models=st.lists(small, min_size=1, max_size=5), size=st.integers(0, 5000), root=st.sampled_from(["", "r1"]))
    def arrive(self, models: list[int], size: int, root: str) -> None:
        for model in models:
            name = (*MODELS, "m0", "m1", "m0", "m1", "unknown")[model]
            arrival = Arrival(f"id-{size}", name, size, 0.0, size % 3 * 50, root)
            arrival.priority, arrival.replayable = size % 5 - 2, size % 7 > 0
            arrival.patience_s = size % 4 / 3.0
            arrival.source = ("here", "there")[size % 2] if root else ""
            action = self.tier.arrived(self.now_s, arrival)
            assert len(self.tier.exchanges) <= self.tier.settings.max_in_flight
            self.check(action)

    def pick(self, which: int, *phases: Phase) -> Exchange | None:
        fitting = [exchange for exchange in self.tier.exchanges.values() if exchange.phase in phases]
        return fitting[which % len(fitting)] if fitting else None

    @rule(which=small)
    def start(self, which: int) -> None:
        if exchange := self.pick(which, Phase.CONNECTING):
            self.tier.attempt_started(self.now_s, exchange)

    @rule(which=small)
    def answer(self, which: int) -> None:
        if exchange := self.pick(which, Phase.WAITING):
            self.tier.first_byte(self.now_s, exchange, (200, 200, 500)[which % 3])

    @rule(which=small, status=st.sampled_from([200, 200, 400, 429, 500, 503]), tokens=small)
    def end(self, which: int, status: int, tokens: int) -> None:
        if exchange := self.pick(which, Phase.STREAMING):
            usage = Usage(tokens * 100, tokens * 20) if tokens else None
            self.tier.ended(self.now_s, exchange, status, usage, 0.0)

    @rule(which=small)
    def find_pooled_connection_closed(self, which: int) -> None:
        self.start(which)
        if exchange := self.pick(which, Phase.WAITING):
            self.fail_one(exchange, Failure.CLOSED, True)

    @rule(which=small, failure=st.sampled_from(list(Failure)), reused=st.booleans())
    def fail(self, which: int, failure: Failure, reused: bool) -> None:
        if exchange := self.pick(which, Phase.CONNECTING, Phase.WAITING, Phase.STREAMING):
            self.fail_one(exchange, failure, reused)

    def fail_one(self, exchange: Exchange, failure: Failure, reused: bool) -> None:
        before, noted = exchange.address, len(self.lines)
        written, answered = exchange.phase is not Phase.CONNECTING, exchange.phase is Phase.STREAMING
        action = self.tier.attempt_failed(
            self.now_s, exchange, failure, written, answered, reused and written, float(len(before) % 3)
        )
        assert len(self.lines) == noted + 1, "one event is noted once, whatever it brings about"
        if isinstance(action, Forward) and action.fresh:
            assert action.address == before
        self.check(action)

    @rule(which=small)
    def leave(self, which: int) -> None:
        if exchange := self.pick(which, *OPEN):
            self.tier.client_gone(self.now_s, exchange)

    @rule(which=small)
    def stall(self, which: int) -> None:
        if exchange := self.pick(which, *OPEN):
            self.tier.stalled(self.now_s, exchange)

    @rule(which=small, total=st.booleans())
    def expire(self, which: int, total: bool) -> None:
        if exchange := self.pick(which, *OPEN):
            self.check(self.tier.expired(self.now_s, exchange, total))

    @rule()
    def take_turns(self) -> None:
        while (turn := self.tier.turn(self.now_s)) is not None:
            assert isinstance(turn.action, Forward) == (turn.exchange.number in self.tier.exchanges)
            self.check(turn.action)

    def check(self, action: RequestAction) -> None:
        if isinstance(action, Wait):
            assert self.role == "leaf"
            assert action.exchange in list(action.exchange.endpoint.queue)
            assert self.now_s <= action.until_s <= self.now_s + 5.0
            return
        if not isinstance(action, Forward):
            assert not isinstance(action, Reject) or action.status in {404, 502, 503, 504}
            return
        exchange = action.exchange
        assert exchange.candidate is not None
        target = exchange.candidate.target
        assert self.tier.targets.get(target.name) is target, "removed"
        assert action.address in target.addresses
        assert action.address not in target.shut
        sent_to = self.sent_to.setdefault(exchange.number, [])
        if not action.fresh:
            assert action.address not in sent_to
            sent_to.append(action.address)
        assert exchange.attempts <= self.tier.retries(exchange.endpoint).attempts
        if action.fresh:
            return  # it is where it was, which need not be where it would be sent now
        assert exchange.candidate in exchange.endpoint.routable
        assert self.now_s >= exchange.candidate.busy_until_s
        assert target.health.standing is Standing.IN or target.health.trial is exchange or exchange.endpoint.panic
        slots = target.settings.slots
        assert not slots or target.in_flight <= slots
        limit = exchange.endpoint.settings.limits.max_in_flight
        assert not limit or exchange.endpoint.in_flight <= limit

    # -- surroundings ------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.wanted += self.tier.timer_fired(self.now_s).solve

    @rule(which=small, keep=st.booleans())
    def solve(self, which: int, keep: bool) -> None:
        """Programs are solved in any order, late, or never."""
        if self.wanted:
            asked = self.wanted.pop(which % len(self.wanted))
            row = tuple(float((which + number) % 3) for number in range(len(asked.program.cells)))
            solution = NetworkLatencySolution(
                asked.program.cells, asked.program.sources, (row,) * len(asked.program.sources), 0.85
            )
            if keep:
                self.tier.solved(self.now_s, asked.endpoint, solution)

    @precondition(lambda self: self.role == "leaf")
    @rule(source=st.sampled_from(["here", "there"]), rtt_s=st.floats(0.0, 1.0), rate_rps=st.floats(0.0, 9.0))
    def ping(self, source: str, rtt_s: float, rate_rps: float) -> None:
        news = News(f"root-{source}", {model: EndpointNews(rate_rps) for model in MODELS})
        self.tier.pinged(self.now_s, source, rtt_s, news)

    @rule(place=small, address=small, up=st.booleans())
    def flap(self, place: int, address: int, up: bool) -> None:
        self.tier.address_changed(self.now_s, f"t{place % 4}", f"http://h{place % 4}:{address % 3}", up)
        self.tier.address_changed(self.now_s, f"t{place % 4}", f"http://h{place % 4}:1", up)

    @precondition(lambda self: self.role == "leaf")
    @rule(place=small, result=st.sampled_from([*Probe, Probe.OK]))
    def probe(self, place: int, result: Probe) -> None:
        self.tier.probed(self.now_s, f"t{place % 4}", f"http://h{place % 4}:1", result)

    @rule(place=small, address=small, drain=st.booleans())
    def administer(self, place: int, address: int, drain: bool) -> None:
        target = self.tier.targets.get(f"t{place % 4}")
        if target is not None:
            which = (*target.addresses, "")[address % (len(target.addresses) + 1)]
            self.tier.admin_set(self.now_s, target.name, which, AdminState.DRAIN if drain else AdminState.READY)

    @rule()
    def audit(self) -> None:
        """Counted another way than below: in ordinary life an audit finds nothing."""
        assert self.tier.audited(self.now_s, tuple(self.tier.exchanges)) == Drift()

    @rule()
    def recover(self) -> None:
        for target in self.tier.targets.values():
            for address in target.addresses:
                if self.role == "leaf":
                    self.tier.address_changed(self.now_s, target.name, address, True)
                else:
                    state = EndpointState(k=2.0, received={BOOT: self.received})
                    line = State(endpoints=dict.fromkeys(MODELS, state))
                    self.tier.state_reported(self.now_s, target.name, address, line, 0.02)

    @rule(variants=st.lists(small, min_size=4, max_size=4))
    def retarget(self, variants: list[int]) -> None:
        """Each stays as it is or becomes another; some go, some come."""
        make = server if self.role == "leaf" else cell
        here = self.tier.targets
        wanted = [
            here[f"t{n}"].settings if f"t{n}" in here and variant < 4 else make(n, variant)
            for n, variant in enumerate(variants)
            if variant != 7
        ]
        self.tier.targets_changed(wanted)

    @rule(policy=st.sampled_from(["", *POLICIES]), limit=st.integers(0, 4), names=st.sets(st.sampled_from(MODELS)))
    def reconfigure(self, policy: str, limit: int, names: set[str]) -> None:
        self.tier.endpoints_changed([EndpointSettings(name, policy, Limits(limit)) for name in sorted(names)])
        self.tier.settings_changed(replace(self.tier.settings, timeouts=Timeouts(total_s=float(limit))))

    @rule(which=small, policy=st.sampled_from(["", *POLICIES]))
    def switch(self, which: int, policy: str) -> None:
        names = sorted(self.tier.endpoints)
        if names:
            self.tier.policy_set(self.now_s, names[which % len(names)], policy)

    @precondition(lambda self: self.role == "leaf")
    @rule(place=small, count=st.integers(0, 3))
    def learn_models(self, place: int, count: int) -> None:
        self.tier.models_learned(self.now_s, f"t{place % 4}", MODELS[:count])

    @precondition(lambda self: self.role == "root")
    @rule(place=small, leaf=small, rif=small, k=st.integers(0, 4), models=st.integers(1, 3), more=st.integers(-3, 5))
    def report(self, place: int, leaf: int, rif: int, k: int, models: int, more: int) -> None:
        self.received = max(0, self.received + more)
        states = {
            model: EndpointState(
                rif=rif,
                k=float(k if number == 0 else (k + rif) % 3),
                received={BOOT: self.received},
                arrivals={"here": float(rif), "there": 1.0} if more > 1 else {},
                curve_version=3 if more > 0 else 0,
                curve=CURVE if more > 2 else None,
            )
            for number, model in enumerate(MODELS[:models])
        }
        line = State(sources={"there": 0.1} if leaf > 3 else {}, endpoints=states)
        self.tier.state_reported(self.now_s, f"t{place % 4}", f"http://h{place % 4}:{leaf % 3}", line, 0.02)

    # -- what always holds -------------------------------------------------------------------------------

    @invariant()
    def counts_are_true(self) -> None:
        tier = self.tier
        exchanges = list(tier.exchanges.values())
        self.remember()
        at_candidate = Counter(id(exchange.candidate) for exchange in exchanges)
        at_target = Counter(id(exchange.candidate.target) for exchange in exchanges if exchange.candidate)
        of_endpoint = Counter(id(exchange.endpoint) for exchange in exchanges if exchange.candidate)
        retries = Counter(id(exchange.endpoint) for exchange in exchanges if exchange.retrying)
        queued = [exchange for endpoint in tier.endpoints.values() for exchange in endpoint.queue]
        assert [e for e in exchanges if e.candidate is None] == sorted([*queued, *tier._shed], key=exchanges.index)
        assert all((e.phase is Phase.QUEUED) == (e.candidate is None) for e in exchanges)
        for candidate in self.seen_candidates:
            assert candidate.in_flight == at_candidate[id(candidate)]
            mine = [exchange for exchange in exchanges if exchange.candidate is candidate]
            owed_s = sum(exchange.prefill_s + exchange.decode_s for exchange in mine)
            assert candidate.work_s == pytest.approx(owed_s, abs=1e-9)
            assert candidate.work_s >= 0.0
        for target in self.seen_targets:
            assert target.in_flight == at_target[id(target)]
            trial = target.health.trial
            assert trial is None or (trial.candidate and trial.candidate.target is target), "a trial that is over"
        for endpoint in tier.endpoints.values():
            assert endpoint.in_flight == of_endpoint[id(endpoint)]
            assert endpoint.retrying == retries[id(endpoint)]
            budgets = tier.retries(endpoint)
            # 3 is the larger `budget_min` of those that an endpoint may have been under.
            assert endpoint.retrying <= max(3, budgets.budget * len(exchanges))
            waiting = [(-e.arrival.priority, e.number) for e in endpoint.queue]
            assert waiting == sorted(waiting)
            assert len(waiting) <= tier.settings.queue.size + 1  # a retry keeps its turn
            self.endpoint_is_true(endpoint)

    def endpoint_is_true(self, endpoint: Endpoint) -> None:
        up = [c for c in endpoint.candidates.values() if self.can_be_asked(c)]
        well = [c for c in up if c.target.health.standing is not Standing.OUT]
        assert endpoint.panic == (bool(up) and not well)
        up = well or up
        assert endpoint.routable == up
        # A leaf counts its servers' requests; a root is told its cells'.
        assert endpoint.rif == sum(candidate.target.in_flight for candidate in up if not candidate.reports)
        assert endpoint.k == sum(candidate.k for candidate in up)
        for candidate in up:
            assert self.tier.targets[candidate.target.name] is candidate.target
            assert candidate in candidate.target.candidates
        endpoint.refresh()  # a look from outside: whoever inspects a tier must not change what it does
        for candidate in up:
            assert candidate.load >= 0.0
            assert endpoint.cost.ready(candidate)
            assert candidate.cost == endpoint.cost.of(candidate)

    def can_be_asked(self, candidate: Candidate) -> bool:
        """A server that answers; a cell with a leaf that answers and has servers."""
        target = candidate.target
        if self.role == "leaf":
            return target.up
        return any(report.k > 0 and target.takes(address) for address, report in candidate.reports.items())

    def remember(self) -> None:
        for target in self.tier.targets.values():
            if target not in self.seen_targets:
                self.seen_targets.append(target)
            self.seen_candidates += [c for c in target.candidates if c not in self.seen_candidates]

    def teardown(self) -> None:
        for number, exchange in enumerate(list(self.tier.exchanges.values())):
            self.now_s += 0.1
            if number % 2 == 0:
                self.tier.client_gone(self.now_s, exchange)
            else:
                self.tier.expired(self.now_s, exchange, True)
        assert not self.tier.exchanges
        self.counts_are_true()
        assert all(endpoint.in_flight == endpoint.rif == 0 for endpoint in self.tier.endpoints.values())
        assert all(candidate.work_s == 0.0 for candidate in self.seen_candidates)
        comparison = replay(self.lines)
        assert comparison.same, comparison.mismatches[0]
        assert comparison.events == len(self.lines) - 1


class LeafSequences(Sequences):
    role = "leaf"


class RootSequences(Sequences):
    role = "root"


@pytest.mark.parametrize("machine", [LeafSequences, RootSequences])
def test_whatever_happens_counts_are_true_and_a_replay_does_the_same(machine: type[Sequences]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=40,
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
        ),
    )


def any_of(rng: Random) -> int:
    return rng.randrange(8)


Step = Callable[[Sequences, Random], None]
WALK: list[tuple[int, Step]] = [
    (8, lambda m, r: m.arrive([any_of(r) for _ in range(r.randint(1, 4))], r.randint(0, 5000), r.choice(["", "r1"]))),
    (8, lambda m, r: m.start(any_of(r))),
    (6, lambda m, r: m.answer(any_of(r))),
    (5, lambda m, r: m.end(any_of(r), r.choice([200, 200, 400, 500]), any_of(r))),
    (4, lambda m, r: m.fail(any_of(r), r.choice(list(Failure)), r.random() < 0.5)),
    (1, lambda m, r: m.find_pooled_connection_closed(any_of(r))),
    (2, lambda m, r: m.leave(any_of(r))),
    (2, lambda m, r: m.expire(any_of(r), r.random() < 0.3)),
    (3, lambda m, r: m.wait(r.choice([0.0, 0.01, 0.5, 5.0]))),
    (3, lambda m, r: m.flap(any_of(r), any_of(r), r.random() < 0.7)),
    (1, lambda m, r: m.administer(any_of(r), any_of(r), r.random() < 0.3)),
    (4, lambda m, r: m.take_turns()),
    (1, lambda m, r: m.audit()),
    (2, lambda m, r: m.solve(any_of(r), r.random() < 0.8)),
    (1, lambda m, r: m.recover()),
    (1, lambda m, r: m.retarget([any_of(r) for _ in range(4)])),
    (1, lambda m, r: m.reconfigure(r.choice(["", *POLICIES]), r.choice([0, 0, 4, 9]), set(r.sample(MODELS, 2)))),
    (1, lambda m, r: m.switch(any_of(r), r.choice(["", *POLICIES]))),
]
WALK_LEAF: list[tuple[int, Step]] = [
    (1, lambda m, r: m.ping(r.choice(["here", "there"]), 0.1, 3 * r.random())),
    (2, lambda m, r: m.learn_models(any_of(r), r.randint(0, 3))),
    (3, lambda m, r: m.probe(any_of(r), r.choice([*Probe, Probe.OK, Probe.OK]))),
]
WALK_ROOT: list[tuple[int, Step]] = [
    (6, lambda m, r: m.report(any_of(r), any_of(r), any_of(r), r.randint(0, 4), r.randint(1, 3), r.randint(-1, 5)))
]


@pytest.mark.parametrize("machine", [LeafSequences, RootSequences])
@pytest.mark.parametrize("seed", range(12))
def test_on_long_walks_counts_are_true_and_a_replay_does_the_same(machine: type[Sequences], seed: int) -> None:
    rng = Random(seed)
    walker = machine()
    weights, steps = zip(*WALK, *(WALK_LEAF if machine.role == "leaf" else WALK_ROOT), strict=True)
    for step in rng.choices(steps, weights, k=600):
        step(walker, rng)
        walker.counts_are_true()
    assert len(walker.sent_to) > 50, "a walk that sends little proves little"
    endpoints = walker.tier.endpoints.values()
    assert sum(endpoint.retried for endpoint in endpoints) > 0
    assert machine.role == "root" or sum(endpoint.queued for endpoint in endpoints) > 0
    assert machine.role == "root" or sum(target.ejections for target in walker.seen_targets) > 0
    walker.teardown()
