"""Each modelled server against theory, or against what can be worked out by hand, through root and leaf.

Means are given with the standard error of 30 batch means. A mean passes that is within 3.66 of them, which chance
exceeds once in a thousand seeds (Student's t, 29 degrees of freedom), and the error itself has a bound, or a test of a
noisy mean would prove nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from math import exp, factorial
from random import Random

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.errors import UsageError
from dlbctl.core.settings import RetrySettings
from dlbctl.engine.model import EngineModel
from dlbctl.engine.profile import load_profile
from dlbctl.engine.sweep import Arrival, drive, prefix_hashes
from dlbctl.sim.arrivals import Request, poisson
from dlbctl.sim.plan import (
    BatchingPlan,
    CellPlan,
    DisaggregatedPlan,
    MultiPlan,
    RatePlan,
    ServerPlan,
    WorldPlan,
)
from tests.sim.worlds import Seen, lived, mean_and_error, one_cell, until, watched

T_29 = 3.66
CURVE = Curve(a=0.08, b=0.0096, c=6.0, s=1.5, version=1, samples=50.0, sd_log_gradient=0.1)
MEAN_S = 0.01
TAUS_S = (0.0, 0.0375)


def alone(server: ServerPlan, tau_s: float, seed: int = 1) -> WorldPlan:
    """Nothing to choose, so nothing to probe often; the curve is told because fits only cost time here."""
    return WorldPlan(
        cells=(CellPlan("a", (server,), curve=CURVE),),
        sources=("here",),
        one_way_s={("here", "a"): tau_s},
        probe_interval_s=60.0,
        seed=seed,
    )


def latencies(server: ServerPlan, rate_rps: float, count: int, tau_s: float = 0.0) -> list[float]:
    """Of a Poisson stream, the network's part taken off; the first tenth is warming up."""
    requests = islice(poisson(Random(7), [rate_rps]), count)
    notes = lived(alone(server, tau_s), requests)
    assert len(notes.seen) == count
    return [latency_s - 2.0 * tau_s for latency_s in notes.latencies_s()[count // 10 :]]


def assert_mean(values: list[float], expected: float, *, error_at_most: float) -> None:
    mean, error = mean_and_error(values)
    assert error < error_at_most * expected
    assert abs(mean - expected) < T_29 * error, (mean, expected, error)


# -- queues with a theory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau_s", TAUS_S)
def test_a_worker_with_exponential_times_is_an_m_m_1_queue(tau_s: float) -> None:
    """Its sojourn is exponential with mean s / (1 - rho): the mean, and the share that takes twice as long."""
    values = latencies(MultiPlan(MEAN_S), 0.6 / MEAN_S, 25_000, tau_s)
    expected_s = MEAN_S / 0.4
    assert_mean(values, expected_s, error_at_most=0.04)
    assert_mean([float(value > 2.0 * expected_s) for value in values], exp(-2.0), error_at_most=0.08)


def erlang_c(workers: int, offered: float) -> float:
    """The share that waits in M/M/k."""
    last = offered**workers / factorial(workers) / (1.0 - offered / workers)
    return last / (sum(offered**n / factorial(n) for n in range(workers)) + last)


@pytest.mark.parametrize(("workers", "busy"), [(2, 0.7), (5, 0.8)])
def test_several_workers_behind_one_queue_are_erlangs(workers: int, busy: float) -> None:
    rate_rps = busy * workers / MEAN_S
    values = latencies(MultiPlan(MEAN_S, workers=workers), rate_rps, 25_000)
    wait_s = erlang_c(workers, busy * workers) / (workers / MEAN_S - rate_rps)
    assert_mean(values, MEAN_S + wait_s, error_at_most=0.04)


@pytest.mark.parametrize("cv", [0.0, 0.5, 2.0])
def test_a_worker_with_other_times_follows_pollaczek_and_khinchine(cv: float) -> None:
    busy = 0.5
    values = latencies(MultiPlan(MEAN_S, cv=cv), busy / MEAN_S, 25_000)
    wait_s = busy * (1.0 + cv * cv) / (2.0 * (1.0 - busy)) * MEAN_S
    assert_mean(values, MEAN_S + wait_s, error_at_most=0.065)


def stationary(k: float, rate_rps: float, most: int = 600) -> list[float]:
    """Of the chain that is born at the rate and dies at k mu(N/k): the share of time with so many in it."""
    weights = [1.0]
    for count in range(1, most):
        weights.append(weights[-1] * rate_rps / (k * CURVE.rate_per_server(count / k)))
    assert weights[-1] < 1e-12 * max(weights), "cut off too early"
    total = sum(weights)
    return [weight / total for weight in weights]


def found_on_arrival(seen: Sequence[Seen], tau_s: float) -> list[int]:
    """How many each request found there, from when others came and ended."""
    came = sorted(one.arrived_s for one in seen)
    went = sorted(one.at_s - 2.0 * tau_s for one in seen)
    return [bisect_left(came, at_s) - bisect_right(went, at_s) for at_s in came]


@pytest.mark.parametrize(("k", "share", "tau_s"), [(1.0, 0.7, 0.0), (8.0, 0.75, 0.0375), (8.0, 0.5, 0.0)])
def test_a_rate_cell_is_a_birth_death_chain(k: float, share: float, tau_s: float) -> None:
    """What Poisson arrivals find is the stationary distribution; its mean over the rate is the mean latency."""
    rate_rps = share * k * CURVE.capacity_per_server()
    expected = stationary(k, rate_rps)
    count = 25_000
    notes = lived(alone(RatePlan(CURVE, weight=k), tau_s), islice(poisson(Random(5), [rate_rps]), count))
    found = found_on_arrival(notes.seen, tau_s)[count // 10 :]
    mean = sum(n * part for n, part in enumerate(expected))
    assert_mean([float(n) for n in found], mean, error_at_most=0.04)
    values = [latency_s - 2.0 * tau_s for latency_s in notes.latencies_s()[count // 10 :]]
    assert_mean(values, mean / rate_rps, error_at_most=0.04)
    busy = sum(expected[: int(mean)])
    assert_mean([float(n < int(mean)) for n in found], busy, error_at_most=0.12)


def test_all_that_is_in_a_rate_cell_is_equally_likely_to_leave() -> None:
    """So the time of one request has a wide distribution, and an older one has no better chance than a new one."""
    requests = [Request(0.0, 0), *(Request(1e-6 * n, 0) for n in range(1, 20))]
    firsts = Counter[int]()
    for seed in range(400):
        notes = lived(alone(RatePlan(CURVE, weight=2.0), 0.0, seed), requests)
        firsts[round(notes.seen[0].arrived_s * 1e6)] += 1
    # 400 draws of 20 values: 20 each, chi squared with 19 degrees of freedom, 43.8 at 0.1 %.
    assert sum((firsts[n] - 20.0) ** 2 / 20.0 for n in range(20)) < 43.8


# -- servers with schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tau_s", [0.0, 0.25])
def test_prefill_in_turn_then_the_first_free_slot(tau_s: float) -> None:
    """1 ms a prompt token, 10 ms an output token, two slots: (came, prompt, output) -> (first token, end)."""
    server = DisaggregatedPlan(prefill_s=0.001, decode_s=0.01, decode_engines=1, slots_per_engine=2)
    schedule = [
        ((0.0, 100, 10), (0.10, 0.20)),  # alone
        ((0.0, 200, 50), (0.30, 0.80)),  # prefill behind the first
        ((0.05, 50, 20), (0.35, 0.55)),  # the other slot is free
        ((0.1, 10, 10), (0.36, 0.65)),  # prefilled at .36, both slots taken until .55
        ((0.3, 100, 1), (0.46, 0.66)),  # both taken until .65
        ((1.0, 100, 10), (1.10, 1.20)),  # idle again
    ]
    requests = [Request(*came_and_sizes[:1], 0, *came_and_sizes[1:]) for came_and_sizes, _ in schedule]
    seen = lived(one_cell(server, tau_s=tau_s), requests).by_arrival
    got = [(one.arrived_s + one.ttft_s, one.at_s) for one in sorted(seen, key=lambda one: (one.arrived_s, one.ttft_s))]
    for (first_s, end_s), (_, (expected_first_s, expected_end_s)) in zip(got, schedule, strict=True):
        assert first_s == pytest.approx(expected_first_s + 2.0 * tau_s, abs=1e-12)
        assert end_s == pytest.approx(expected_end_s + 2.0 * tau_s, abs=1e-12)


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens"), [(1000, 20), (100, 200)], ids=["prefill is scarce", "decode is scarce"]
)
def test_an_overloaded_server_serves_its_capacity(prompt_tokens: int, output_tokens: int) -> None:
    server = DisaggregatedPlan(prefill_s=1e-4, decode_s=7e-3)
    capacity_rps = server.capacity_rps(prompt_tokens, output_tokens)

    def sizes(rng: Random) -> tuple[int, int]:
        return int(prompt_tokens * rng.uniform(0.5, 1.5)), int(output_tokens * rng.uniform(0.5, 1.5))

    requests = until(poisson(Random(3), [1.3 * capacity_rps], sizes), 300.0)
    world, notes = watched(one_cell(server), requests)
    world.run(300.0)
    ended = sum(one.at_s >= 100.0 for one in notes.seen)
    # Some 2,000 sizes with a CV of .29: .65 %; twice that, and the slots' first filling.
    assert ended / 200.0 == pytest.approx(capacity_rps, rel=0.02)


def engine_requests(count: int) -> Iterator[Request]:
    """Prompts that share beginnings, at a rate that makes queues."""
    rng = Random(11)
    at_s = 0.0
    for _ in range(count):
        at_s += rng.expovariate(6.0)
        prompt_tokens = rng.randint(20, 900)
        hashes = prefix_hashes(rng.randrange(12), rng.randint(0, prompt_tokens), 16)
        yield Request(at_s, 0, prompt_tokens, rng.randint(1, 120), block_hashes=hashes)


@pytest.mark.parametrize("time_factor", [1.0, 0.7])
def test_the_embedded_engine_does_as_it_does_alone(time_factor: float) -> None:
    """The same steps at the same times, to the last bit: the reference is the engine's own drive over arrivals."""
    profile = load_profile("l40s")
    requests = list(engine_requests(1500))
    model = EngineModel(profile, time_factor=time_factor)
    samples = drive(
        model, [Arrival(one.at_s, one.prompt_tokens, one.output_tokens, one.block_hashes) for one in requests]
    )
    assert max(sample.in_flight for sample in samples) > 20
    assert model.cache_hits_total > 0
    notes = lived(one_cell(BatchingPlan(profile, time_factor)), requests)
    assert [(one.arrived_s, one.latency_s, one.ttft_s) for one in notes.by_arrival] == [
        (sample.at_s, sample.latency_s, sample.ttft_s) for sample in samples
    ]


def test_the_engine_refuses_what_is_too_long_for_it() -> None:
    """As the real one does, with 400: no fault of the server, and the next request is served."""
    profile = load_profile("laptop")
    most = profile.max_model_tokens
    notes = lived(
        one_cell(BatchingPlan(profile), tau_s=0.1, retries=RetrySettings(attempts=3)),
        [Request(1.0, 0, most - 9, 10), Request(2.0, 0, most - 10, 10)],
    )
    long, fitting = notes.by_arrival
    assert (long.status, long.code) == (400, "context_length_exceeded")
    assert long.latency_s == pytest.approx(0.2)
    assert fitting.status == 200


def test_a_full_engine_declines_and_the_next_server_is_tried() -> None:
    """1,024 wait in an engine at most; the leaf of two asks the other one and then says 503."""
    profile = load_profile("laptop")
    count = 2 * (1024 + profile.max_num_seqs) + 40
    plan = one_cell(BatchingPlan(profile, time_factor=10.0), count=2, retries=RetrySettings(attempts=2))
    world, notes = watched(plan, [Request(1.0, 0, 10, 5) for _ in range(count)])
    world.finish(1e5)
    statuses = Counter(one.status for one in notes.seen)
    assert statuses == {200: 2 * (1024 + profile.max_num_seqs), 503: 40}


@pytest.mark.parametrize(
    "server",
    [
        DisaggregatedPlan(prefill_s=1e-3, decode_s=1e-2),
        BatchingPlan(load_profile("l40s")),
        MultiPlan(0.5, cv=0.0),
    ],
    ids=lambda server: type(server).__name__,
)
def test_a_slowed_server_takes_so_many_times_as_long(server: ServerPlan) -> None:
    world, notes = watched(one_cell(server), [Request(1.0, 0, 100, 10), Request(50.0, 0, 100, 10)])
    world.at(10.0, lambda world: world.slow_down(0, 3.0))
    world.finish(1000.0)
    before, after = notes.by_arrival
    assert after.latency_s == pytest.approx(3.0 * before.latency_s)
    assert after.ttft_s == pytest.approx(3.0 * before.ttft_s)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DisaggregatedPlan(prefill_s=-1.0, decode_s=1.0),
        lambda: DisaggregatedPlan(prefill_s=1.0, decode_s=1.0, decode_engines=0),
        lambda: BatchingPlan(load_profile("laptop"), time_factor=0.0),
        lambda: MultiPlan(float("nan")),
        lambda: MultiPlan(1.0, workers=0),
        lambda: MultiPlan(1.0, cv=-0.5),
        lambda: RatePlan(CURVE, weight=float("inf")),
    ],
)
def test_servers_that_cannot_be_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(UsageError, match=r"Plan: (\w+) is "):
        wrong()
