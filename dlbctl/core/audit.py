"""The accounting audit: what a tier counts against the exchanges that are really open, and the correction."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.endpoint import Endpoint
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.target import Candidate, Target
    from dlbctl.core.tier import Tier

# Sums of work are sums of floats in changing order; less than this is no drift.
WORK_TOLERANCE_S = 1e-6


def recount(tier: Tier) -> tuple[str, ...]:
    """Count everything again from the open exchanges. Says what was wrong; nothing is, as a rule."""
    wrong = _Recount(tier).correct()
    if wrong:
        for endpoint in tier.endpoints.values():
            endpoint.settle()
    return wrong


class _Recount:
    """The true counts, from the open exchanges alone."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._at_candidate: Counter[Candidate] = Counter()
        self._at_target: Counter[Target] = Counter()
        self._of_endpoint: Counter[Endpoint] = Counter()
        self._retrying: Counter[Endpoint] = Counter()
        self._work_s: dict[Candidate, float] = {}
        for endpoint in tier.endpoints.values():
            for candidate in endpoint.candidates.values():
                self._work_s[candidate] = 0.0
        for exchange in tier.exchanges.values():
            self._retrying[exchange.endpoint] += exchange.retrying
            if exchange.candidate is not None:
                self._add(exchange, exchange.candidate)

    def _add(self, exchange: Exchange, candidate: Candidate) -> None:
        self._at_candidate[candidate] += 1
        self._at_target[candidate.target] += 1
        self._of_endpoint[exchange.endpoint] += 1
        work_s = exchange.prefill_s + exchange.decode_s
        self._work_s[candidate] = self._work_s.get(candidate, 0.0) + work_s

    def correct(self) -> tuple[str, ...]:
        """Overwrite each count that is not the true one; what they were, in words."""
        wrong = [self._correct_candidate(candidate) for candidate in self._work_s]
        targets = {candidate.target for candidate in self._work_s}.union(self._tier.targets.values())
        for target in targets:
            wrong.append(_differs(target.name, target.in_flight, self._at_target[target]))
            target.in_flight = self._at_target[target]
        for endpoint in self._tier.endpoints.values():
            wrong.append(_differs(endpoint.name, endpoint.in_flight, self._of_endpoint[endpoint]))
            endpoint.in_flight = self._of_endpoint[endpoint]
            wrong.append(_differs(f"retries of {endpoint.name}", endpoint.retrying, self._retrying[endpoint]))
            endpoint.retrying = self._retrying[endpoint]
        return tuple(sorted(words for words in wrong if words))

    def _correct_candidate(self, candidate: Candidate) -> str:
        name = f"{candidate.endpoint.name} at {candidate.target.name}"
        count, work_s = self._at_candidate[candidate], self._work_s[candidate]
        words = _differs(name, candidate.in_flight, count)
        if abs(candidate.work_s - work_s) > WORK_TOLERANCE_S:
            words = words or f"{name}: {candidate.work_s:.6f} s of work counted, {work_s:.6f} s owed"
            candidate.work_s = work_s
        candidate.in_flight = count
        return words


def _differs(name: str, counted: int, is_open: int) -> str:
    return f"{name}: {counted} counted, {is_open} open" if counted != is_open else ""
