"""The simulated world does what its tiers say, when the network lets it: delays, retries, queues, health, changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean
from typing import Any

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.errors import ConfigError, UsageError
from dlbctl.core.health import Standing
from dlbctl.core.settings import ExplorationSettings, HealthSettings, RetrySettings, Timeouts
from dlbctl.core.target import Candidate
from dlbctl.sim.arrivals import Request, poisson
from dlbctl.sim.plan import (
    MODEL,
    CellPlan,
    DisaggregatedPlan,
    MultiPlan,
    RatePlan,
    ServerPlan,
    WorldPlan,
)
from dlbctl.sim.world import World
from tests.router.live import assert_idle
from tests.sim.worlds import Notes, lived, many_cells, one_cell, tiers, until, watched

CURVE = Curve(a=0.08, b=0.0096, c=6.0, s=1.5, version=1, samples=50.0, sd_log_gradient=0.1)
# One request at a time, exactly a second each.
SECOND = MultiPlan(1.0, cv=0.0)
# Any number of requests at once, exactly a second each.
ROOMY = MultiPlan(1.0, workers=1000, cv=0.0)


def candidate(world: World, cell: str, root: int = 0) -> Candidate:
    """What a root knows of a cell."""
    endpoint = world.roots[root].tier.endpoints[MODEL]
    endpoint.refresh()
    return endpoint.candidates[cell]


def ends(notes: Notes) -> list[tuple[object, ...]]:
    """Status, code, cell and latency, in the order in which requests came."""
    return [(one.status, one.code, one.cell, pytest.approx(one.latency_s)) for one in notes.by_arrival]


def with_cells(plan: WorldPlan, **more: Any) -> WorldPlan:
    """The plan with all its cells changed."""
    return replace(plan, cells=tuple(replace(cell, **more) for cell in plan.cells))


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "server", [DisaggregatedPlan(1e-4, 7e-3), MultiPlan(0.05, workers=2)], ids=lambda server: type(server).__name__
)
def test_the_network_adds_its_round_trip_and_nothing_else(server: ServerPlan) -> None:
    requests = list(islice(poisson(Random(1), [20.0], lambda rng: (rng.randint(1, 900), rng.randint(1, 30))), 500))
    near, far = (lived(one_cell(server, tau_s=tau_s), requests).by_arrival for tau_s in (0.0, 0.0375))
    for one, other in zip(near, far, strict=True):
        assert other.latency_s == pytest.approx(one.latency_s + 0.075, abs=1e-9)
        assert other.ttft_s == pytest.approx(one.ttft_s + 0.075, abs=1e-9)


@pytest.mark.parametrize(("tau_s", "rounds"), [(0.0, 0), (0.004, 1), (0.1, 10), (0.1001, 11)])
def test_a_root_hears_a_state_that_is_as_old_as_the_way_is_long(tau_s: float, rounds: int) -> None:
    """In whole rounds of 10 ms, rounded up."""
    world, _ = watched(one_cell(ROOMY, tau_s=tau_s), [Request(1.002, 0)])
    received = 1.002 + tau_s
    taken_down = next(number for number in range(1000) if number * 0.01 > received)
    world.run((taken_down + rounds) * 0.01 - 0.002)
    assert candidate(world, "a").reports["a#0"].rif == 0
    world.run((taken_down + rounds) * 0.01 + 0.002)
    assert candidate(world, "a").reports["a#0"].rif == 1
    assert candidate(world, "a").tau_s == tau_s


def test_probes_are_lost_as_often_as_planned() -> None:
    world, _ = watched(one_cell(ROOMY, probe_loss=0.7, seed=3), [])
    heard = set()
    for number in range(2000):
        world.run(0.01 * number + 0.005)
        heard.add(candidate(world, "a").reported_s)
    # 2,000 draws at .3: a standard error of 20.
    assert len(heard) == pytest.approx(600, abs=66)


def test_without_curves_told_roots_learn_the_leaves_own() -> None:
    plan = one_cell(MultiPlan(0.02), tau_s=0.01, exploration=ExplorationSettings(dither=0.0))
    world, _ = watched(plan, until(poisson(Random(1), [30.0]), 30.0))
    world.run(30.0)
    assert candidate(world, "a").curve == world.leaves[0].tier.estimators[MODEL].curve
    assert candidate(world, "a").curve is not None
    told, _ = watched(with_cells(plan, curve=CURVE, curve_factor=1.2), [])
    assert candidate(told, "a").curve == CURVE.perturbed(1.2)
    told.run(5.0)
    assert candidate(told, "a").curve == CURVE.perturbed(1.2)


# -- several routers -----------------------------------------------------------------------------------------


def test_roots_of_one_place_take_turns_and_so_do_the_leaves_of_a_cell() -> None:
    plan = one_cell(ROOMY, tau_s=0.01, roots_per_source=2, leaves_per_cell=2)
    world, _ = watched(plan, [Request(1.0 + 0.001 * n, 0) for n in range(40)])
    world.run(1.5)
    assert [len(root.open) for root in world.roots] == [20, 20]
    assert [len(leaf.open) for leaf in world.leaves] == [20, 20]
    assert candidate(world, "a").rif == 40.0
    assert candidate(world, "a").k == 1.0, "the leaves share their servers"


def test_requests_come_to_the_root_where_they_are() -> None:
    plan = many_cells({"a": (ROOMY,), "b": (ROOMY,)}, {"a": (0.0, 0.2), "b": (0.2, 0.0)}, policy="discrete/latency")
    plan = with_cells(plan, curve=CURVE)
    notes = lived(plan, [Request(1.0, 0), Request(1.0, 1), Request(2.0, 1)])
    assert [(one.source, one.cell) for one in notes.by_arrival] == [(0, 0), (1, 1), (1, 1)]


# -- retries -------------------------------------------------------------------------------------------------


def two_cells(server: ServerPlan = ROOMY, **more: Any) -> WorldPlan:
    """A near cell and a far one, with latencies told, so that an idle near one is always asked first."""
    plan = many_cells({"near": (server,), "far": (server,)}, {"here": (0.1, 0.2)}, policy="discrete/latency", **more)
    return with_cells(plan, curve=CURVE)


def test_a_cell_that_is_gone_refuses_until_its_roots_hear_of_it() -> None:
    """Gone at 10: a request of 9.95 or 10.05 is there too late, and is tried elsewhere or fails; one of 10.15 not."""
    came_s = [9.95, 10.05, 10.15, 20.0, 30.0]
    for attempts in (1, 2):
        world, notes = watched(
            two_cells(retries=RetrySettings(attempts=attempts)), [Request(at_s, 0) for at_s in came_s]
        )
        world.at(10.0, lambda world: world.lose(0))
        world.at(25.0, lambda world: world.restore(0))
        world.finish(100.0)
        refused = (502, "upstream_unreachable", 0, 0.2) if attempts == 1 else (200, "", 1, 1.6)
        # The one of 9.95 is refused at 10.05 and back at 10.15; so is that of 10.05, to its root, which knows by then.
        assert ends(notes) == [refused, refused, (200, "", 1, 1.4), (200, "", 1, 1.4), (200, "", 0, 1.2)]


def test_what_is_under_way_in_a_cell_that_goes_is_cut_off() -> None:
    """One had begun, the other waits for the worker: cut for the client, and 502."""
    world, notes = watched(two_cells(SECOND, retries=RetrySettings(attempts=3)), [Request(10.0, 0), Request(10.0, 0)])
    world.drain(1)
    world.at(10.5, lambda world: world.lose(0))
    world.finish(100.0)
    assert ends(notes) == [(200, "upstream_closed", 0, 0.6), (502, "upstream_closed", 0, 0.6)]
    assert [one.ttft_s for one in notes.seen] == [pytest.approx(0.2), float("inf")]
    for tier in tiers(world):
        assert_idle(tier)


def test_a_cell_comes_back_idle() -> None:
    """What was cut off is not worked on behind the next one."""
    requests = [*(Request(1.0, 0) for _ in range(5)), Request(4.0, 0)]
    world, notes = watched(one_cell(SECOND, tau_s=0.1), requests)
    world.at(2.0, lambda world: world.lose(0))
    world.at(3.0, lambda world: world.restore(0))
    world.finish(100.0)
    assert ends(notes)[-1] == (200, "", 0, 1.2)


def test_a_busy_cell_s_overflow_goes_to_another_cell() -> None:
    """One is served, one waits in the near cell's queue, and the third is told so and goes on."""
    plan = with_cells(two_cells(SECOND, retries=RetrySettings(attempts=2)), slots=1, queue_size=1, curve=None)
    plan = replace(plan, policy="argmin/rif")
    world, notes = watched(plan, [Request(10.0, 0) for _ in range(3)])
    world.drain(1)
    world.at(10.05, lambda world: world.drain(1, drained=False))
    world.finish(100.0)
    assert sorted(ends(notes), key=str) == sorted(
        [(200, "", 0, 1.2), (200, "", 0, 2.2), (200, "", 1, 0.2 + 1.4)], key=str
    )


# -- queues and time limits ----------------------------------------------------------------------------------


def test_requests_wait_for_a_slot_and_no_more_than_the_queue_holds() -> None:
    plan = with_cells(one_cell(SECOND, tau_s=0.1), slots=1, queue_size=1)
    world, notes = watched(plan, [Request(10.0, 0) for _ in range(3)])
    world.run(10.5)
    assert candidate(world, "a").reports["a#0"].rif == 2, "who waits counts"
    world.finish(100.0)
    assert sorted(one.latency_s for one in notes.seen) == pytest.approx([0.2, 1.2, 2.2])
    assert [(one.status, one.code) for one in notes.seen] == [(503, "queue_full"), (200, ""), (200, "")]


def test_without_a_queue_a_full_cell_says_so_at_once() -> None:
    plan = with_cells(one_cell(SECOND, tau_s=0.1), slots=1)
    notes = lived(plan, [Request(10.0, 0), Request(10.0, 0)])
    assert ends(notes) == [(503, "all_servers_full", 0, 0.2), (200, "", 0, 1.2)] or ends(notes) == [
        (200, "", 0, 1.2),
        (503, "all_servers_full", 0, 0.2),
    ]


def test_nobody_waits_longer_than_the_queue_allows() -> None:
    """30 s by default; the one in front takes 50."""
    plan = with_cells(one_cell(MultiPlan(50.0, cv=0.0), tau_s=0.1), slots=1, queue_size=5)
    notes = lived(plan, [Request(10.0, 0), Request(11.0, 0), Request(45.0, 0)])
    assert ends(notes) == [(200, "", 0, 50.2), (503, "queue_timeout", 0, 30.2), (200, "", 0, 15.0 + 50.2)]


def test_a_first_byte_that_does_not_come_is_given_up() -> None:
    """The wheel looks once a second, so the limit of 2 s is noticed at 3 s at the latest; the leaf is as impatient."""
    plan = one_cell(MultiPlan(10.0, cv=0.0), tau_s=0.1, timeouts=Timeouts(first_byte_s=2.0))
    world, notes = watched(plan, [Request(10.0, 0), Request(10.5, 0)])
    world.finish(100.0)
    given_up, served = notes.seen
    assert (given_up.status, given_up.code) == (504, "upstream_first_byte_timeout")
    assert 2.0 <= given_up.latency_s <= 3.2
    assert served.status == 200
    assert served.latency_s == pytest.approx(10.2)
    for tier in tiers(world):
        assert_idle(tier)


def test_what_comes_back_after_it_was_given_up_is_dropped() -> None:
    """Far away: the news of a cut at 11.9 and of a refusal at 26.7 come to a root that has given both up by then."""
    plan = one_cell(SECOND, tau_s=1.5, retries=RetrySettings(attempts=3), timeouts=Timeouts(first_byte_s=1.2))
    world, notes = watched(plan, [Request(10.0, 0), Request(10.0, 0), Request(25.2, 0)])
    world.at(11.9, lambda world: world.lose(0))
    world.at(15.0, lambda world: world.restore(0))
    world.at(25.0, lambda world: world.lose(0))
    world.finish(100.0)
    world.run(100.0)
    assert ends(notes) == [
        (504, "upstream_first_byte_timeout", 0, 2.0),
        (504, "upstream_first_byte_timeout", 0, 2.0),
        (504, "upstream_first_byte_timeout", 0, 1.8),
    ]


def test_nobody_in_a_cell_that_goes_gets_a_turn() -> None:
    """One is served, one waits and would be failed if it were sent: both are cut off, and told of once."""
    plan = with_cells(one_cell(SECOND, tau_s=0.1), slots=1, queue_size=3)
    world, notes = watched(plan, [Request(10.0, 0), Request(10.0, 0)])
    world.at(10.5, lambda world: world.fail(0, 1.0))
    world.at(10.6, lambda world: world.lose(0))
    world.finish(100.0)
    assert ends(notes) == [(200, "upstream_closed", 0, 0.7), (502, "upstream_closed", 0, 0.7)]


# -- health --------------------------------------------------------------------------------------------------


def test_a_server_that_fails_is_ejected_tried_and_comes_back() -> None:
    """All of the cell's servers fail from 10 to 30 s: one of the two may be ejected, tried, and ejected for longer."""
    health = HealthSettings(failures=3, eject_s=4.0, slow_start_s=10.0)
    plan = one_cell(MultiPlan(0.01, workers=50), count=2, tau_s=0.01, health=health)
    world, notes = watched(plan, until(poisson(Random(1), [50.0]), 60.0))
    targets = list(world.leaves[0].tier.targets.values())
    world.at(10.0, lambda world: world.fail(0, 1.0))
    world.at(30.0, lambda world: world.fail(0, 0.0))
    world.run(11.0)
    assert sorted(target.health.standing for target in targets) == [Standing.OUT, Standing.IN]
    assert sum(target.ejections for target in targets) == 1
    world.run(29.0)
    assert sum(target.ejections for target in targets) > 1
    world.run(60.0)
    assert [target.health.standing for target in targets] == [Standing.IN, Standing.IN]
    assert [target.share for target in targets] == [1.0, 1.0]
    for one in notes.seen:
        failed = 10.0 <= one.arrived_s + 0.01 < 30.0
        assert (one.status, one.code) == ((500, "upstream_error") if failed else (200, "")), one


def test_a_share_of_requests_fails() -> None:
    world, notes = watched(one_cell(ROOMY, health=HealthSettings(failures=0)), until(poisson(Random(1), [100.0]), 30.0))
    world.fail(0, 0.3)
    world.finish(100.0)
    # Some 3,000 draws: a standard error of .008.
    assert fmean(one.status == 500 for one in notes.seen) == pytest.approx(0.3, abs=0.028)


# -- changes -------------------------------------------------------------------------------------------------


def test_added_servers_serve_and_those_taken_out_finish() -> None:
    world, notes = watched(one_cell(SECOND), [Request(float(at_s), 0) for at_s in (1, 1, 1, 5, 5, 5, 5.5)])
    world.at(4.0, lambda world: world.resize(0, (SECOND,) * 3))
    world.at(5.2, lambda world: world.resize(0, (SECOND,)))
    world.finish(50.0)
    assert sorted(one.latency_s for one in notes.seen[:3]) == pytest.approx([1.0, 2.0, 3.0])
    assert [one.at_s for one in notes.seen[3:]] == pytest.approx([6.0, 6.0, 6.0, 7.0])
    assert {one.server for one in notes.seen[3:6]} == {"a/0", "a/1", "a/2"}
    assert notes.seen[6].server == "a/0"


def test_a_cell_of_one_law_is_resized_by_its_weight() -> None:
    """As the same law with more servers; what is there finishes."""
    plan = replace(one_cell(RatePlan(CURVE, weight=2.0)), probe_interval_s=1.0)
    world, notes = watched(plan, until(poisson(Random(1), [150.0]), 60.0))
    world.at(30.0, lambda world: world.resize(0, (RatePlan(CURVE, weight=20.0),)))
    world.run(31.0)
    assert candidate(world, "a").k == 20.0
    world.finish(100.0)
    assert len(notes.seen) == len(notes.latencies_s())
    # All but idle: CURVE's a, and some 4,000 nearly exponential times.
    assert fmean(notes.latencies_s(32.0)) == pytest.approx(CURVE.a, rel=0.07)
    assert fmean(notes.latencies_s()[:4000]) > 1.15 * CURVE.a


def test_a_cell_may_lose_all_its_servers_and_get_some_again() -> None:
    world, notes = watched(one_cell(ROOMY, tau_s=0.1), [Request(1.0, 0), Request(3.0, 0), Request(6.0, 0)])
    world.at(2.0, lambda world: world.resize(0, ()))
    world.at(5.0, lambda world: world.resize(0, (ROOMY,)))
    world.finish(50.0)
    assert [(one.status, one.code) for one in notes.by_arrival] == [(200, ""), (503, "no_routable_cell"), (200, "")]


def test_a_drained_cell_gets_nothing_new() -> None:
    world, notes = watched(two_cells(), [Request(1.0, 0), Request(2.0, 0), Request(4.0, 0)])
    world.at(1.5, lambda world: world.drain(0))
    world.at(3.0, lambda world: world.drain(0, drained=False))
    world.finish(50.0)
    assert ends(notes) == [(200, "", 0, 1.2), (200, "", 1, 1.4), (200, "", 0, 1.2)]


def test_a_policy_switch_is_one_at_every_root() -> None:
    plan = replace(two_cells(), sources=("here", "there"))
    plan = replace(plan, one_way_s={**plan.one_way_s, ("there", "near"): 0.1, ("there", "far"): 0.2})
    world, notes = watched(plan, [Request(1.0 + n, n % 2) for n in range(200)])
    world.at(100.5, lambda world: world.set_policy("weighted-random"))
    world.finish(300.0)
    by_half = [Counter(one.cell for one in notes.by_arrival[:100]), Counter(one.cell for one in notes.by_arrival[100:])]
    assert by_half[0] == {0: 100}
    assert by_half[1][0] == pytest.approx(50, abs=17)  # 3.3 standard errors
    with pytest.raises(ConfigError, match="magic"):
        world.set_policy("magic")


def test_a_world_can_be_told_to_go_on() -> None:
    """Stopping to look changes nothing."""
    requests = list(islice(poisson(Random(1), [30.0]), 150))
    plan = many_cells({"a": (SECOND, SECOND), "b": (SECOND,)}, {"here": (0.01, 0.02)}, policy="flow/rif", seed=2)
    at_once, notes = watched(plan, requests)
    at_once.run(60.0)
    world, again = watched(plan, requests)
    for number in range(600):
        world.run(0.1 * (number + 1))
    assert notes.seen == again.seen
    assert len(notes.seen) == 150


# -- plans that cannot be ------------------------------------------------------------------------------------

GOOD = two_cells()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cells": ()}, "no cell"),
        ({"sources": ()}, "no source"),
        ({"cells": (GOOD.cells[0],) * 2}, "two cells are called near"),
        ({"sources": ("here", "here")}, "two sources are called here"),
        ({"one_way_s": {("here", "near"): 0.1}}, "the network delay from here to far is missing"),
        ({"one_way_s": {**GOOD.one_way_s, ("here", "far"): -0.1}}, "from here to far is -0.1 s: it cannot be negative"),
        ({"one_way_s": {**GOOD.one_way_s, ("here", "far"): float("nan")}}, "from here to far is nan s"),
        ({"probe_interval_s": 0.0}, "probe interval 0 s"),
        ({"probe_loss": 1.0}, "probe loss 1"),
        ({"roots_per_source": 0}, "roots_per_source 0"),
        ({"leaves_per_cell": 0}, "leaves_per_cell 0"),
        ({"policy": "discrete/magic"}, "magic"),
        ({"leaf_policy": "magic"}, "magic"),
        ({"timeouts": Timeouts(total_s=3.0)}, "total_s"),
    ],
)
def test_a_world_that_cannot_be_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises((UsageError, ConfigError)) as caught:
        World(replace(GOOD, **changed), iter(()), Notes())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"servers": ()}, "cell near: has no server"),
        ({"slots": -1}, "cell near: slots is -1"),
        ({"queue_size": -1}, "cell near: queue_size is -1"),
        ({"capacity_rps": float("nan")}, "cell near: capacity_rps is nan"),
        ({"curve_factor": 0.0}, "cell near: curve_factor is 0"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        CellPlan(**({"name": "near", "servers": (SECOND,)} | changed))
