"""Memory is flat in simulated time: a world of ten minutes holds what one of a minute does."""

from __future__ import annotations

import gc
import sys
from random import Random

from dlbctl.core.settings import HealthSettings, RetrySettings, Timeouts
from dlbctl.sim.arrivals import poisson
from dlbctl.sim.plan import CellPlan, DisaggregatedPlan, MultiPlan, RatePlan, WorldPlan
from dlbctl.sim.world import World
from tests.sim.test_convergence import CURVES


class Counted:
    """An observer that keeps nothing."""

    requests = 0
    errors = 0

    def ended(
        self,
        at_s: float,
        source: int,
        cell: int,
        server: str,
        arrived_s: float,
        latency_s: float,
        ttft_s: float,
        status: int,
        code: str,
    ) -> None:
        self.requests += 1
        self.errors += status != 200


def blocks() -> int:
    """Pieces of memory that Python has handed out, cycles collected."""
    gc.collect()
    return sys.getallocatedblocks()


def test_memory_is_flat_in_simulated_time() -> None:
    """One minute and ten: some 7,000 requests later, with fits, rounds, queues, time-outs, retries and failures.

    The stores of samples are of fixed size from the start. 1,500 pieces: what is in flight differs, by a few hundred; a
    single piece kept of each request would be 7,000, and of each probe round 2,700.
    """
    cells = (
        CellPlan("a", (DisaggregatedPlan(1e-4, 8e-3),) * 2, slots=6, queue_size=4),
        CellPlan("b", (MultiPlan(0.25, workers=2),) * 2, slots=3, queue_size=4),
        CellPlan("c", (RatePlan(CURVES["a"], weight=2.0),)),
    )
    plan = WorldPlan(
        cells=cells,
        sources=("a", "b"),
        one_way_s={(source, cell.name): 0.02 for source in "ab" for cell in cells},
        policy="flow/latency",
        probe_interval_s=0.2,
        probe_loss=0.1,
        leaves_per_cell=2,
        retries=RetrySettings(attempts=2),
        timeouts=Timeouts(first_byte_s=1.0),
        health=HealthSettings(failures=3, eject_s=2.0),
    )
    counted = Counted()
    coming = poisson(Random(1), [8.0, 5.0], lambda rng: (rng.randint(100, 900), rng.randint(10, 150)))
    world = World(plan, coming, counted)
    world.fail(1, 0.05)
    world.run(60.0)
    before, requests = blocks(), counted.requests
    world.run(600.0)
    after = blocks()
    assert counted.requests - requests > 6_500
    assert counted.errors > 50
    assert abs(after - before) < 1500
