"""A cell in virtual time: the engines' own model behind the leaf's own decisions, and what latency that gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dlbctl.core.events import Arrival as TierArrival
from dlbctl.core.events import Forward, Usage
from dlbctl.core.exchange import Exchange
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from dlbctl.engine.model import EngineModel
from dlbctl.engine.model import Sequence as EngineSequence
from dlbctl.engine.profile import Profile
from dlbctl.engine.sweep import Arrival

_MODEL = "m"


@dataclass(frozen=True, slots=True)
class Met:
    """A request that ended: the load it met [requests in flight per server] and its latency to the last byte."""

    load: float
    latency_s: float


class VirtualCell:
    """Engines of one profile and a leaf tier that chooses among them, driven by arrivals alone."""

    def __init__(self, profile: Profile, servers: int, *, time_factor: float = 1.0, seed: int = 0) -> None:
        names = [str(number) for number in range(servers)]
        targets = tuple(TargetSettings(name, (name,), (_MODEL,)) for name in names)
        self._tier = Tier(TierSettings("leaf", "virtual", targets, seed=seed), "virtual")
        self._engines = {name: EngineModel(profile, time_factor=time_factor) for name in names}
        self._step_ends_s: dict[str, float] = {}
        self._open: dict[EngineSequence, Exchange] = {}
        self._met: list[Met] = []
        for name in names:
            self._tier.address_changed(0.0, name, name, True)

    def drive(self, arrivals: Iterable[Arrival]) -> list[Met]:
        """Take arrivals in order of time and let all of them end."""
        for arrival in arrivals:
            self._run_until(arrival.at_s)
            self._take(arrival)
        self._run_until(float("inf"))
        return self._met

    def _take(self, arrival: Arrival) -> None:
        asked = TierArrival("", _MODEL, 0, arrival.prompt_tokens, arrival.output_tokens)
        action = self._tier.arrived(arrival.at_s, asked)
        assert isinstance(action, Forward)
        self._tier.attempt_started(arrival.at_s, action.exchange)
        # The engine sends an answer's head when it takes the request, as vLLM does.
        self._tier.first_byte(arrival.at_s, action.exchange)
        engine = self._engines[action.address]
        sequence = engine.submit(arrival.at_s, arrival.prompt_tokens, arrival.output_tokens, arrival.block_hashes)
        assert sequence is not None
        self._open[sequence] = action.exchange
        if action.address not in self._step_ends_s:
            self._begin(action.address, arrival.at_s)

    def _run_until(self, now_s: float) -> None:
        while self._step_ends_s:
            name = min(self._step_ends_s, key=self._step_ends_s.__getitem__)
            ends_s = self._step_ends_s[name]
            if ends_s > now_s:
                return
            finished = self._engines[name].finish_step(ends_s).finished
            self._begin(name, ends_s)
            for sequence in finished:
                self._end(ends_s, sequence)

    def _begin(self, name: str, now_s: float) -> None:
        duration_s = self._engines[name].begin_step()
        if duration_s is None:
            self._step_ends_s.pop(name, None)
        else:
            self._step_ends_s[name] = now_s + duration_s

    def _end(self, now_s: float, sequence: EngineSequence) -> None:
        exchange = self._open.pop(sequence)
        self._met.append(Met(exchange.load_at_arrival, now_s - exchange.arrived_s))
        self._tier.ended(now_s, exchange, 200, Usage(sequence.prompt_tokens, sequence.output_tokens), 0.0)


def mean_latency_s(met: Sequence[Met]) -> float:
    """Mean latency of requests that ended."""
    return sum(one.latency_s for one in met) / len(met)
