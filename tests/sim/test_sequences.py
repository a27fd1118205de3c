"""Whatever is planned and whatever happens: each request is told of once, and nothing is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlbctl.core.curve import Curve
from dlbctl.core.settings import HealthSettings, RetrySettings, Timeouts
from dlbctl.engine.profile import load_profile
from dlbctl.sim.arrivals import Request, batched, poisson
from dlbctl.sim.plan import BatchingPlan, CellPlan, DisaggregatedPlan, MultiPlan, RatePlan, ServerPlan, WorldPlan
from dlbctl.sim.world import World
from tests.core.views import POLICIES
from tests.router.live import assert_idle
from tests.sim.worlds import Notes, assert_no_drift, tiers, until

CURVE = Curve(a=0.3, b=0.04, c=6.0, s=1.5, version=1, samples=50.0, sd_log_gradient=0.1)
LAPTOP = load_profile("laptop")
SERVERS: list[ServerPlan] = [
    DisaggregatedPlan(prefill_s=1e-4, decode_s=7e-3),
    DisaggregatedPlan(prefill_s=3e-3, decode_s=2e-2, decode_engines=1, slots_per_engine=2, weight=0.5),
    BatchingPlan(LAPTOP),
    BatchingPlan(LAPTOP, time_factor=0.2),
    MultiPlan(mean_s=0.3),
    MultiPlan(mean_s=0.8, workers=3, cv=2.0, weight=2.0),
    RatePlan(CURVE, weight=3.0),
]
DELAYS_S = [0.0, 0.0005, 0.0237, 0.16, 1.3]
LIFE_S = 10.0

Change = Callable[[World], None]


@dataclass(frozen=True)
class Life:
    """A world, the requests that come there, and what is changed when."""

    plan: WorldPlan
    requests: tuple[Request, ...]
    changes: tuple[tuple[float, Change], ...]

    def __repr__(self) -> str:
        return f"<Life of {self.plan}, {len(self.requests)} requests, changes {self.changes}>"


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Anything small."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sources = ["here", "there"][: draw(st.integers(1, 2))]
    some_servers = st.lists(st.sampled_from(SERVERS), min_size=1, max_size=4).map(tuple)
    cells = tuple(
        CellPlan(
            name,
            draw(some_servers),
            slots=draw(st.sampled_from([0, 1, 3])),
            queue_size=draw(st.sampled_from([0, 0, 2, 20])),
            capacity_rps=draw(st.sampled_from([0.0, 3.0])),
            curve=draw(st.sampled_from([None, CURVE])),
            curve_factor=draw(st.sampled_from([1.0, 1.3])),
        )
        for name in names
    )
    plan = WorldPlan(
        cells=cells,
        sources=tuple(sources),
        one_way_s={(source, cell): draw(st.sampled_from(DELAYS_S)) for source in sources for cell in names},
        policy=draw(st.sampled_from(POLICIES)),
        leaf_policy=draw(st.sampled_from([policy for policy in POLICIES if policy != "mnlb"])),
        probe_interval_s=draw(st.sampled_from([0.01, 0.05, 0.2])),
        probe_loss=draw(st.sampled_from([0.0, 0.0, 0.3, 0.9])),
        roots_per_source=draw(st.integers(1, 2)),
        leaves_per_cell=draw(st.integers(1, 2)),
        retries=RetrySettings(attempts=draw(st.integers(1, 3))),
        timeouts=Timeouts(first_byte_s=draw(st.sampled_from([0.0, 0.5, 2.0, 30.0]))),
        health=HealthSettings(failures=2, eject_s=1.0, slow_start_s=2.0, interval_s=1.0),
        seed=draw(st.integers(0, 9)),
    )
    rng = Random(draw(st.integers(0, 999)))
    rates = [draw(st.sampled_from([1.0, 8.0, 30.0])) for _ in sources]

    def sizes(rng: Random) -> tuple[int, int]:
        return rng.randint(1, 900), rng.randint(1, 60)

    bunched = draw(st.booleans())
    coming = batched(rng, rates, 1.7, sizes) if bunched else poisson(rng, rates, sizes)
    requests = tuple(until(coming, LIFE_S * 0.8))
    changes = draw(st.lists(st.tuples(st.floats(0.0, LIFE_S), changes_to(len(names), some_servers)), max_size=8))
    return Life(plan, requests, tuple(changes))


def changes_to(cells: int, servers: st.SearchStrategy[tuple[ServerPlan, ...]]) -> st.SearchStrategy[Change]:
    """What may happen to a world."""
    cell = st.integers(0, cells - 1)
    return st.one_of(
        st.builds(lambda cell, plans: lambda world: world.resize(cell, plans), cell, servers),
        st.builds(
            lambda cell, factor: lambda world: world.slow_down(cell, factor), cell, st.sampled_from([0.5, 1.0, 9.0])
        ),
        st.builds(lambda cell, share: lambda world: world.fail(cell, share), cell, st.sampled_from([0.0, 0.4, 1.0])),
        st.builds(lambda cell: lambda world: world.lose(cell), cell),
        st.builds(lambda cell: lambda world: world.restore(cell), cell),
        st.builds(
            lambda cell, drained: lambda world: world.drain(cell, drained=drained), cell, st.sampled_from([True, False])
        ),
        st.builds(lambda policy: lambda world: world.set_policy(policy), st.sampled_from(POLICIES)),
    )


def live(life: Life) -> Notes:
    """Have it happen, looking at the counts ten times on the way; then everything is mended and comes to rest."""
    notes = Notes()
    world = World(life.plan, iter(life.requests), notes)
    for at_s, change in life.changes:
        world.at(at_s, change)
    for part in range(10):
        world.run(LIFE_S * (part + 1) / 10)
        assert_no_drift(world)
    for cell in range(len(life.plan.cells)):
        world.slow_down(cell, 1.0)
    world.finish(LIFE_S + 4000.0)
    assert world.exhausted
    assert world.in_flight == 0
    until_leaves_try_nothing(world)
    for tier in tiers(world):
        assert_idle(tier)
    assert_no_drift(world)
    return notes


def until_leaves_try_nothing(world: World) -> None:
    """Go on to a moment without requests of the leaves' own, which cells that are sent little are tried with."""
    gives_up_s = world.now_s + 60.0
    while any(leaf.open for leaf in world.leaves):
        assert world.now_s < gives_up_s
        world.run(world.now_s + 0.05)


def check(life: Life, notes: Notes) -> None:
    """Each request is told of once, at a time at which it can be over."""
    assert Counter((one.arrived_s, one.source) for one in notes.seen) == Counter(
        (one.at_s, one.source) for one in life.requests
    )
    plan = life.plan
    for one in notes.seen:
        assert one.at_s == pytest.approx(one.arrived_s + one.latency_s, abs=1e-9)
        assert (one.status, one.code) == (200, "") or one.code, one
        if one.cell < 0:
            assert (one.latency_s, one.server) == (0.0, ""), one
            continue
        round_trip_s = 2.0 * plan.one_way_s[plan.sources[one.source], plan.cells[one.cell].name]
        gave_up = one.code == "upstream_first_byte_timeout"
        if not gave_up:
            assert one.latency_s >= round_trip_s - 1e-9, one
        if one.status == 200:
            assert round_trip_s - 1e-9 <= one.ttft_s <= one.latency_s, one
            assert one.server.startswith(plan.cells[one.cell].name)


def check_lives(count: int) -> None:
    """So many, the same ones each time."""

    @settings(derandomize=True, deadline=None, max_examples=count, suppress_health_check=list(HealthCheck))
    @given(lives())
    def each_request_is_told_of_once_and_nothing_is_left_of_it(life: Life) -> None:
        notes = live(life)
        check(life, notes)
        assert live(life).seen == notes.seen, "the same plan and requests, the same observations"

    each_request_is_told_of_once_and_nothing_is_left_of_it()


def test_in_a_few_worlds_each_request_is_told_of_once_and_nothing_is_left_of_it() -> None:
    check_lives(12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_many_worlds_each_request_is_told_of_once_and_nothing_is_left_of_it() -> None:
    check_lives(150)
