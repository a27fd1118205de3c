"""The engine model in virtual time: what latency it shows at what load, and how much it can serve.

It is the reference that fitted latency curves are checked against.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from dlbctl.engine.model import EngineModel, Sequence, State

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable
    from collections.abc import Sequence as Items

    from dlbctl.engine.profile import Profile

_ROUNDS = 8
"""Answers that each place of a closed loop gives; the first half warms up."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at a time; `block_hashes` as `EngineModel.submit` takes them."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    block_hashes: Items[int] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of an arrival. `in_flight`: the requests it found, running and waiting, not itself."""

    at_s: float
    in_flight: int
    latency_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class LoadBin:
    """Means over samples of similar load."""

    in_flight: float
    latency_s: float
    ttft_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class SteadyState:
    """What a constant number of requests in flight leads to."""

    latency_s: float
    throughput_rps: float


def poisson_times(rng: random.Random, rate_rps: float, duration_s: float) -> list[float]:
    """Arrival times of a Poisson process from 0 to `duration_s`."""
    times = []
    now_s = rng.expovariate(rate_rps)
    while now_s < duration_s:
        times.append(now_s)
        now_s += rng.expovariate(rate_rps)
    return times


def prefix_hashes(prefix_id: int, tokens: int, block_tokens: int) -> list[int]:
    """Block hashes of a shared prefix so many tokens long: equal ids share blocks, others never do."""
    digest, hashes = prefix_id, []
    for _ in range(tokens // block_tokens):
        digest = xxh3_64_intdigest(b"prefix", digest)
        hashes.append(digest)
    return hashes


def drive(model: EngineModel, arrivals: Iterable[Arrival]) -> list[Sample]:
    """Run arrivals, in order of time, through an idle engine; samples in order of arrival.

    An arrival that the queue limit refuses leaves no sample.
    """
    found: list[tuple[Sequence, int]] = []
    step_ends_s: float | None = None
    for arrival in arrivals:
        while step_ends_s is not None and step_ends_s <= arrival.at_s:
            step_ends_s = _step(model, step_ends_s)
        in_flight = model.running + model.waiting
        sequence = _submit(model, arrival)
        if sequence is not None:
            found.append((sequence, in_flight))
        if step_ends_s is None:
            step_ends_s = _begin(model, arrival.at_s)
    while step_ends_s is not None:
        step_ends_s = _step(model, step_ends_s)
    return [_sample(sequence, in_flight) for sequence, in_flight in found]


def by_in_flight(samples: Iterable[Sample], bins: int = 24) -> list[LoadBin]:
    """Mean latency by load, in at most `bins` bins of as equal a number of samples as ties allow."""
    ordered = sorted(samples, key=lambda sample: sample.in_flight)
    cuts = sorted({_past_ties(ordered, len(ordered) * cut // bins) for cut in range(bins + 1)})
    return [_mean(ordered[begin:end]) for begin, end in pairwise(cuts)]


def steady_state(profile: Profile, in_flight: int, prompt_tokens: int, output_tokens: int) -> SteadyState:
    """Mean latency and throughput with always `in_flight` equal requests of different prompts.

    The first answers are cut to different lengths, or all requests would march in step.
    """
    model = EngineModel(profile, queue_limit=in_flight)
    for place in range(in_flight):
        model.submit(0.0, prompt_tokens, 1 + output_tokens * place // in_flight)
    ended: deque[Sequence] = deque()
    now_s = 0.0
    while len(ended) < _ROUNDS * in_flight:
        duration_s = model.begin_step()
        assert duration_s is not None
        now_s += duration_s
        finished = model.finish_step(now_s).finished
        ended.extend(finished)
        for _ in finished:
            model.submit(now_s, prompt_tokens, output_tokens)
    counted = list(ended)[len(ended) // 2 :]
    latency_s = sum(sequence.finished_s - sequence.arrived_s for sequence in counted) / len(counted)
    span_s = counted[-1].finished_s - ended[len(ended) // 2 - 1].finished_s
    return SteadyState(latency_s, len(counted) / span_s)


def capacity_rps(profile: Profile, prompt_tokens: int, output_tokens: int) -> float:
    """Requests per second that an engine serves at most: its throughput when its queue never empties."""
    return steady_state(profile, 2 * profile.max_num_seqs, prompt_tokens, output_tokens).throughput_rps


def _submit(model: EngineModel, arrival: Arrival) -> Sequence | None:
    return model.submit(arrival.at_s, arrival.prompt_tokens, arrival.output_tokens, arrival.block_hashes)


def _begin(model: EngineModel, now_s: float) -> float | None:
    duration_s = model.begin_step()
    return None if duration_s is None else now_s + duration_s


def _step(model: EngineModel, ends_s: float) -> float | None:
    """End the step in progress; returns when the next one ends."""
    model.finish_step(ends_s)
    return _begin(model, ends_s)


def _sample(sequence: Sequence, in_flight: int) -> Sample:
    assert sequence.state is State.FINISHED
    latency_s = sequence.finished_s - sequence.arrived_s
    return Sample(sequence.arrived_s, in_flight, latency_s, sequence.first_token_s - sequence.arrived_s)


def _past_ties(ordered: list[Sample], index: int) -> int:
    """The first place from `index` on where the load changes: one load never falls into two bins."""
    while 0 < index < len(ordered) and ordered[index].in_flight == ordered[index - 1].in_flight:
        index += 1
    return index


def _mean(samples: list[Sample]) -> LoadBin:
    count = len(samples)
    return LoadBin(
        sum(sample.in_flight for sample in samples) / count,
        sum(sample.latency_s for sample in samples) / count,
        sum(sample.ttft_s for sample in samples) / count,
        count,
    )
