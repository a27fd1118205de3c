"""Every policy serves a small world, and what it says of shares is shares."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.offline import replay
from dlbctl.core.snapshot import cells
from dlbctl.sim.arrivals import Request, poisson
from dlbctl.sim.plan import MODEL, MultiPlan, WorldPlan
from dlbctl.sim.world import World
from tests.core.views import BARE, POLICIES
from tests.sim.test_law import Recorder
from tests.sim.worlds import Notes, assert_no_drift, lived, many_cells, watched

CURVE = Curve(a=0.08, b=0.0096, c=6.0, s=1.5, version=1, samples=50.0, sd_log_gradient=0.1)


def world_of(policy: str) -> WorldPlan:
    """Two roots, three cells of one to three servers of which one is far; what their curve is they say themselves."""
    server = MultiPlan(0.05, workers=4)
    plan = many_cells(
        {"a": (server,), "b": (server,) * 2, "far": (server,) * 3},
        {"a": (0.001, 0.01, 0.1), "b": (0.01, 0.001, 0.1)},
        policy=policy,
        probe_interval_s=0.05,
    )
    return replace(plan, cells=tuple(replace(cell, curve=CURVE) for cell in plan.cells))


def requests() -> list[Request]:
    """150 in a bit more than a second, of six sessions and of none."""
    coming = islice(poisson(Random(1), [60.0, 60.0]), 150)
    return [replace(one, session=number % 7) for number, one in enumerate(coming)]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_a_small_world_without_loss(policy: str) -> None:
    world, notes = watched(world_of(policy), requests())
    world.finish(30.0)
    assert [one.status for one in notes.seen] == [200] * 150
    assert_no_drift(world)
    for share in shares_of(world):
        assert sum(share) == pytest.approx(1.0)
        assert all(0.0 <= one <= 1.0 for one in share)


@pytest.mark.parametrize("policy", BARE)
def test_what_was_done_is_done_again_offline_whoever_looked_on(policy: str) -> None:
    """Those that remember something, most of all: the record has the events, and nothing of who inspected."""
    recorder, plan = Recorder(), world_of(policy)
    world = World(plan, iter(requests()), Notes(), recorder.tier_of)
    for number in range(25):
        world.at(0.05 * number, inspect)
    world.at(0.6, lambda world: world.resize(0, plan.cells[2].servers))
    world.finish(30.0)
    for root in world.roots:  # a leaf whose curve is told fits none: it is not as it was recorded
        comparison = replay(recorder.logs[root.tier.boot])
        assert comparison.same, comparison.mismatches[0]


def inspect(world: World) -> None:
    """As an operator does."""
    for root in world.roots:
        cells(root.tier, world.now_s)


def shares_of(world: World) -> list[list[float]]:
    """Of every root whose mechanism sets some."""
    endpoints = [root.tier.endpoints[MODEL] for root in world.roots]
    return list(filter(None, (endpoint.mechanism.shares(endpoint.routable) for endpoint in endpoints)))


def test_a_session_stays_with_its_server() -> None:
    """By consistent hashing at roots and leaves: both know the session, and so does the other root."""
    rng = Random(2)
    sessions = [rng.getrandbits(64) for _ in range(15)]
    coming = [replace(one, session=sessions[number % 15]) for number, one in enumerate(requests())]
    notes = lived(replace(world_of("maglev"), leaf_policy="maglev"), coming)
    servers = [{one.server for one in notes.by_arrival[number::15]} for number in range(15)]
    assert all(len(of_one) == 1 for of_one in servers)
    assert len(set.union(*servers)) >= 5
