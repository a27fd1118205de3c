"""Adds up outcomes while they come: counts and the samples that percentiles are taken of."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.replay.outcome import Outcome
    from dlbctl.replay.slo import Objective


class Tally:
    """Running sums over a run's outcomes. sent == ok + failed + interrupted, always."""

    def __init__(self, objective: Objective | None = None) -> None:
        self._objective = objective
        self.results: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.shares: dict[str, Counter[str]] = {"target": Counter(), "cell": Counter(), "server": Counter()}
        self.lag_s, self.ttft_s, self.e2e_s, self.tpot_s = array("d"), array("d"), array("d"), array("d")
        # One for every chunk: half the bytes do.
        self.itl_s = array("f")
        self.met_objective = self.moved = self.reconnected = self.without_usage = 0
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        self.estimated_prompt_tokens = 0
        self.last_end_s = 0.0

    def __repr__(self) -> str:
        return f"<Tally {dict(self.results)}>"

    @property
    def sent(self) -> int:
        """Requests that ended, in whatever way."""
        return self.results.total()

    def add(self, outcome: Outcome, gaps_s: list[float]) -> None:
        """Count one outcome in. gaps_s: times between its chunks."""
        self.results[outcome.result] += 1
        self.moved += outcome.moved > 0
        self.reconnected += outcome.reconnected
        self.last_end_s = max(self.last_end_s, outcome.end_s)
        if outcome.lag_s is not None:
            self.lag_s.append(outcome.lag_s)
        if outcome.result == "failed":
            self.failed[outcome.error or "unknown"] += 1
        self._add_shares(outcome)
        if outcome.result == "ok":
            self._add_success(outcome, gaps_s)

    def _add_shares(self, outcome: Outcome) -> None:
        for kind, name in (("target", outcome.target), ("cell", outcome.cell), ("server", outcome.server)):
            if name is not None:
                self.shares[kind][name] += 1

    def _add_success(self, outcome: Outcome, gaps_s: list[float]) -> None:
        self.e2e_s.append(outcome.e2e_s)
        self.itl_s.extend(gaps_s)
        if outcome.ttft_s is not None:
            self.ttft_s.append(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self.tpot_s.append(outcome.tpot_s)
        if self._objective is not None:
            self.met_objective += self._objective.met(outcome.ttft_s, outcome.e2e_s)
        self._add_usage(outcome)

    def _add_usage(self, outcome: Outcome) -> None:
        if outcome.prompt_tokens is None:
            self.without_usage += 1
            return
        self.prompt_tokens += outcome.prompt_tokens
        self.estimated_prompt_tokens += outcome.input_tokens
        self.completion_tokens += outcome.completion_tokens or 0
        self.cached_tokens += outcome.cached_tokens or 0
