"""One served model name in one tier: its candidates, the policy in force, what it has learned of its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.core.admission import AdmissionQueue
from dlbctl.core.decay import Average, DecayedCount
from dlbctl.core.fleet_prior import FleetPriors
from dlbctl.core.health import Standing
from dlbctl.core.mechanism import Mechanism
from dlbctl.core.policy import Cost, Policy
from dlbctl.core.prefill import PrefillRate
from dlbctl.core.sources import ArrivalRates

if TYPE_CHECKING:
    import random

    from dlbctl.core.events import Arrival, Usage
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.programs import Program, Solution
    from dlbctl.core.settings import EndpointSettings
    from dlbctl.core.target import Candidate

# Work in seconds of a standard server. Only their ratio matters to a choice among servers: one decode
# token costs some 90 prefill tokens, because it occupies a batch slot for a whole step.
PREFILL_S_PER_TOKEN = 0.0001
DECODE_S_PER_TOKEN = 90 * PREFILL_S_PER_TOKEN

# English text is near four bytes a token; the ratio is learned from the engine's own counts.
FIRST_TOKENS_PER_BYTE = 0.25
FIRST_PROMPT_TOKENS = 512.0
FIRST_OUTPUT_TOKENS = 128.0
LEARNING_WEIGHT = 0.05

DEMAND_HALF_LIFE_S = 5.0

# An answer that begins later in its time than this came in one piece, and does not tell when its first token was there.
STREAMED_SHARE = 0.9

# With fewer requests ending than this nobody can say when there will be room.
RATE_KNOWN_PER_S = 0.05


class Endpoint:
    """Routing state of one endpoint.

    routable: candidates that can be chosen now. policy: in force; an operator's switch overrides the
    configured one. cost: the cost in use, which is the policy's or one it falls back to until every
    routable candidate can tell it (costs in different units must not be compared). corrected: whether loads count what
    is on its way to a cell, as the mechanism wants. dither: largest SD by which policies see curves changed.
    rif: in flight at the
    routable servers, of a leaf; a root's cells report theirs. limited: not every routable candidate may take
    more. held_until_s: until then some candidate is left alone because it said it is busy. panic: every candidate
    that answers is ejected, so all of them are routable. retrying: retries under way that the budget counts.
    demand: requests of users that came to this tier of late, whatever became of them.
    Totals since the start: retried, retries_denied (by the budget), queued, waited_s, refused (for want of room),
    explored (requests of this leaf's own).
    """

    def __init__(self, settings: EndpointSettings, default_policy: str, *, configured: bool) -> None:
        self.name = settings.name
        self.in_flight = 0
        self.rif = 0
        self.candidates: dict[str, Candidate] = {}
        self.routable: list[Candidate] = []
        self._stale: list[Candidate] = []
        self.limited = False
        self.held_until_s = 0.0
        self.panic = False
        self.queue = AdmissionQueue()
        self.retrying = 0
        self.retried = 0
        self.retries_denied = 0
        self.queued = 0
        self.explored = 0
        self.waited_s = 0.0
        self.refused = 0
        self.tokens_per_byte = Average(FIRST_TOKENS_PER_BYTE, LEARNING_WEIGHT)
        self.output_tokens = Average(FIRST_OUTPUT_TOKENS, LEARNING_WEIGHT)
        self.prompt_tokens = Average(FIRST_PROMPT_TOKENS, LEARNING_WEIGHT)
        self.prefill = PrefillRate()
        self.received: dict[str, int] = {}
        self.arrivals = ArrivalRates()
        self.priors = FleetPriors()
        self.demand = DecayedCount(DEMAND_HALF_LIFE_S)
        self._default_policy = default_policy
        self.override: Policy | None = None
        self.dither = 0.0
        self.configured = configured
        self.settings = settings
        self.configured_policy = Policy.parse(settings.policy or default_policy)
        self._use(self.configured_policy)

    def __repr__(self) -> str:
        return f"<Endpoint {self.name} {self.policy}, {len(self.routable)} routable, {self.in_flight} in flight>"

    def configure(self, settings: EndpointSettings, *, configured: bool) -> None:
        """Take over changed settings; a live override stays. configured: somebody wrote them down.

        A policy that stays the same keeps its mechanism, and with it whatever that has learned.
        """
        self.configured = configured
        self.settings = settings
        self.configured_policy = Policy.parse(settings.policy or self._default_policy)
        self._follow()

    def set_policy(self, policy: Policy | None) -> None:
        """Override the configured policy, or with None go back to it."""
        self.override = policy
        self._follow()

    def _follow(self) -> None:
        policy = self.override or self.configured_policy
        if policy != self.policy:
            self._use(policy)
        else:
            self.mechanism.configure(self.settings)
            self._let_swing()

    def _let_swing(self) -> None:
        """Dither as the settings have it, but not under a mechanism that is a paper's as written."""
        dither = self.settings.exploration.dither if self.mechanism.CORRECTED else 0.0
        if dither != self.dither:
            self.dither = dither
            for candidate in self.candidates.values():
                candidate.see()
                self.touch(candidate)

    def explore(self, now_s: float, dice: random.Random) -> None:
        """See to the candidates' dither."""
        if self.dither > 0.0:
            for candidate in self.candidates.values():
                candidate.explore(now_s, dice)

    def _use(self, policy: Policy) -> None:
        self.policy = policy
        self.mechanism: Mechanism = policy.start()
        self.mechanism.configure(self.settings)
        self.corrected = self.mechanism.CORRECTED
        self._let_swing()
        self.wanted_cost = policy.load_cost()
        self.cost = self.wanted_cost
        self.settle()

    # -- candidates ------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Work out who can be chosen and on which cost. Called when either may have changed, not per request."""
        for candidate in self.routable:
            candidate.counted = False
            candidate.place = -1
        answering = [c for c in self.candidates.values() if c.answers]
        self.routable = [c for c in answering if c.target.health.standing is not Standing.OUT]
        self.panic = bool(answering) and not self.routable
        if self.panic:
            self.routable = answering
        for place, candidate in enumerate(self.routable):
            candidate.counted = not candidate.reports
            candidate.place = place
        self.limited = any(
            c.target.settings.slots or c.target.health.standing is not Standing.IN for c in self.routable
        )
        self.rif = sum(c.target.in_flight for c in self.routable if c.counted)
        self.k = sum((c.k for c in self.routable), 0.0)
        cost = self.wanted_cost
        while cost.fallback and not all(cost.ready(c) for c in self.routable):
            cost = Cost.load(cost.fallback)
        self.cost = cost
        self.mechanism.priced(cost)
        for candidate in self.routable:
            self.touch(candidate)
        self.mechanism.among(self.routable)

    def touch(self, candidate: Candidate) -> None:
        """Something its cost depends on has changed; the cost is worked out when it is next looked at."""
        if not candidate.stale:
            candidate.stale = True
            self._stale.append(candidate)

    def refresh(self) -> None:
        """Bring loads and costs up to date: only those that were touched have changed."""
        cost = self.cost
        per_token = cost.per_token
        stale = self._stale
        for candidate in stale:
            candidate.stale = False
            candidate.measure()
            if candidate.weight > 0.0 and (not cost.fallback or cost.ready(candidate)):
                candidate.cost = cost.of(candidate)
                candidate.per_token = 0.0 if per_token is None else per_token(candidate)
        self.mechanism.changed(stale)
        stale.clear()

    @property
    def full(self) -> bool:
        """Whether it has as many requests in flight as it may have."""
        return 0 < self.settings.limits.max_in_flight <= self.in_flight

    def room_will_come(self, now_s: float, exchange: Exchange) -> bool:
        """Whether waiting may help: for an end of a request, not for a server that says it is busy."""
        return any(now_s >= c.busy_until_s and c.has_address_beside(exchange.tried) for c in self.routable)

    def expected_wait_s(self, now_s: float, ahead: int) -> float:
        """How long until so many requests and one more have found room, at the rate at which requests end now."""
        ends_per_s = sum((candidate.requests.rate(now_s) for candidate in self.candidates.values()), 0.0)
        return (ahead + 1) / ends_per_s if ends_per_s > RATE_KNOWN_PER_S else 0.0

    def choose(self, now_s: float, exchange: Exchange, rng: random.Random) -> tuple[Candidate, str] | None:
        """Pick a candidate with room that the exchange has not tried; None when there is none."""
        candidates = self.routable
        if self.limited or now_s < self.held_until_s:
            background = exchange.arrival.background
            candidates = [c for c in candidates if c.admits(now_s, background)]
        if exchange.tried:
            candidates = [c for c in candidates if c.has_address_beside(exchange.tried)]
        if not candidates:
            return None
        if len(candidates) == 1:
            return candidates[0], "only-one"
        if self._stale:
            self.refresh()
        index, rule = self.mechanism.choose(now_s, candidates, exchange, rng)
        return candidates[index], rule

    def round(self, now_s: float) -> None:
        """Have the mechanism learn from the costs as they are now."""
        self.refresh()
        self.mechanism.round(now_s, self.routable)

    def program(self, now_s: float, here: str) -> Program | None:
        """What the mechanism wants solved now, if anything."""
        return self.mechanism.program(now_s, here, self.routable)

    def solved(self, solution: Solution) -> None:
        """Hand a solution to the mechanism, unless it is about cells that are gone."""
        if all(cell in self.candidates for cell in solution.cells):
            self.mechanism.solved(solution)

    # -- what is learned -------------------------------------------------------------------------------

    def estimate(self, exchange: Exchange) -> None:
        """Charge the exchange with the work it is expected to bring."""
        arrival: Arrival = exchange.arrival
        prompt_tokens = arrival.prompt_tokens or arrival.prompt_bytes * self.tokens_per_byte.value
        output_tokens = self.output_tokens.value
        if arrival.max_output_tokens and (arrival.root or arrival.max_output_tokens < output_tokens):
            output_tokens = float(arrival.max_output_tokens)
        exchange.prompt_tokens = prompt_tokens
        exchange.output_tokens = output_tokens
        exchange.extra_tokens = prompt_tokens - self.prompt_tokens.value
        self.prompt_tokens.add(prompt_tokens)
        exchange.prefill_s = PREFILL_S_PER_TOKEN * prompt_tokens
        exchange.decode_s = DECODE_S_PER_TOKEN * output_tokens

    def learn(self, now_s: float, exchange: Exchange, usage: Usage) -> None:
        """Take the engine's own token counts as samples; where a root has estimated, it learns sizes, not this tier."""
        arrival = exchange.arrival
        ttft_s = exchange.first_byte_s - exchange.arrived_s
        if usage.prompt_tokens > 0 and ttft_s < STREAMED_SHARE * (now_s - exchange.arrived_s):
            self.prefill.add(now_s, usage.prompt_tokens - usage.cached_tokens, exchange.load_at_arrival, ttft_s)
        if arrival.root:
            return
        if usage.prompt_tokens > 0 and arrival.prompt_bytes > 0:
            self.tokens_per_byte.add(usage.prompt_tokens / arrival.prompt_bytes)
        if usage.completion_tokens > 0:
            self.output_tokens.add(usage.completion_tokens)
