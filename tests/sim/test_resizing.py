"""Curves are functions of the load per server, so a cell that gets more servers keeps its curve."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from dlbctl.core.curve import Curve
from dlbctl.sim.arrivals import varying
from dlbctl.sim.plan import MODEL, CellPlan, RatePlan, WorldPlan
from dlbctl.sim.world import World
from tests.sim.worlds import watched

LAW = Curve(a=0.8, b=0.096, c=6.0, s=1.5)
RAMP_S = 80.0
STEP_S = 10.0


def fitted(servers: int, after: int) -> Curve:
    """The curve after a ramp from 30 to 85 % of capacity, the number of servers having changed halfway."""
    steps = []
    for number in count():
        at_s = number * STEP_S
        if at_s >= RAMP_S:
            break
        k = servers if at_s < RAMP_S / 2 else after
        share = 0.30 + 0.55 * at_s / (RAMP_S - STEP_S)
        steps.append((at_s, [share * k * LAW.capacity_per_server()]))
    plan = WorldPlan(
        cells=(CellPlan("a", (RatePlan(LAW, weight=float(servers)),)),),
        sources=("here",),
        one_way_s={("here", "a"): 0.0},
        probe_interval_s=1.0,
        seed=1,
    )
    world, _ = watched(plan, varying(Random(1), steps))

    def resized(world: World) -> None:
        world.resize(0, (RatePlan(LAW, weight=float(after)),))

    world.at(RAMP_S / 2, resized)
    world.run(RAMP_S)
    curve = world.leaves[0].tier.estimators[MODEL].curve
    assert curve is not None
    return curve


@pytest.mark.parametrize(("servers", "after"), [(6, 3), (3, 6)])
def test_a_change_of_servers_in_the_middle_of_a_ramp_leaves_the_curve(servers: int, after: int) -> None:
    """Some 2,000 requests of nearly exponential times: within 15 % of the law.

    A fitted curve is the latency given the load that was met, which is not l(n) while the load is changing.
    """
    changed = fitted(servers, after)
    for n in (2.0, 4.0, 8.0):
        assert changed.latency_s(n) == pytest.approx(LAW.latency_s(n), rel=0.15)
