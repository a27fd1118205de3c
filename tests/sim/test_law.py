"""The law in the simulated world: its tiers recorded, and run again offline, do the same."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.events import Event
from dlbctl.core.offline import VERSION, Action, Entry, Header, outcome, replay
from dlbctl.core.settings import HealthSettings, RetrySettings, TierSettings, Timeouts
from dlbctl.core.tier import Tier
from dlbctl.router.eventlog import RecordedTier
from dlbctl.sim.arrivals import poisson
from dlbctl.sim.plan import CellPlan, DisaggregatedPlan, MultiPlan, ServerPlan, WorldPlan
from dlbctl.sim.world import TierFactory, World
from tests.sim.worlds import Notes, until

CURVE = Curve(a=0.2, b=0.03, c=6.0, s=1.5, version=1, samples=50.0, sd_log_gradient=0.1)
SERVERS: dict[str, tuple[ServerPlan, ...]] = {
    "a": (DisaggregatedPlan(1e-4, 5e-3),) * 2,
    "b": (MultiPlan(0.2, workers=2), MultiPlan(0.1, weight=0.5)),
}


class Recorder:
    """Makes tiers that write down what they hear, and keeps a log for each by its boot id."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}

    def tier_of(self, settings: TierSettings, boot: str) -> Tier:
        lines = self.logs[boot] = [msgspec.json.encode(Header(VERSION, 0, boot, settings)) + b"\n"]

        def note(at_s: float, event: Event, action: Action | None) -> None:
            lines.append(msgspec.json.encode(Entry(at_s, event, outcome(action))) + b"\n")

        return RecordedTier(settings, boot, note)


def plan(policy: str, *, told: bool) -> WorldPlan:
    cells = tuple(
        CellPlan(name, servers, slots=9, queue_size=5, capacity_rps=12.0, curve=CURVE if told else None)
        for name, servers in SERVERS.items()
    )
    return WorldPlan(
        cells=cells,
        sources=("a", "b"),
        one_way_s={("a", "a"): 0.0005, ("a", "b"): 0.03, ("b", "a"): 0.03, ("b", "b"): 0.0005},
        policy=policy,
        probe_interval_s=0.05,
        probe_loss=0.1,
        leaves_per_cell=2,
        retries=RetrySettings(attempts=2),
        timeouts=Timeouts(first_byte_s=2.0),
        health=HealthSettings(failures=3, eject_s=2.0),
    )


def eventful(plan: WorldPlan, tier_of: TierFactory | None = None) -> tuple[Recorder, Notes]:
    """Half a minute in which most things happen that can."""
    recorder, notes = Recorder(), Notes()
    coming = poisson(Random(5), [14.0, 9.0], lambda rng: (rng.randint(1, 900), rng.randint(1, 60)))
    world = World(plan, until(coming, 30.0), notes, tier_of or recorder.tier_of)
    world.at(6.0, lambda world: world.fail(1, 0.5))
    world.at(9.0, lambda world: world.fail(1, 0.0))
    world.at(12.0, lambda world: world.lose(0))
    world.at(14.0, lambda world: world.restore(0))
    world.at(16.0, lambda world: world.slow_down(0, 6.0))
    world.at(19.0, lambda world: world.slow_down(0, 1.0))
    world.at(20.0, lambda world: world.resize(1, plan.cells[1].servers * 2))
    world.at(23.0, lambda world: world.drain(1))
    world.at(25.0, lambda world: world.drain(1, drained=False))
    world.finish(200.0)
    return recorder, notes


@pytest.mark.parametrize("policy", ["flow/gradient", "discrete/latency", "mnlb"])
def test_what_a_root_did_is_done_again_offline(policy: str) -> None:
    """With curves told, so that costs are known from the start. Leaves that fit theirs are the next test's."""
    recorder, notes = eventful(plan(policy, told=True))
    for source in ("root-0-0", "root-1-0"):
        comparison = replay(recorder.logs[source])
        assert comparison.same, comparison.mismatches[0]
        assert comparison.events == len(recorder.logs[source]) - 1
        assert comparison.actions > 250
    codes = {one.code for one in notes.seen}
    assert codes >= {"", "upstream_error", "upstream_closed"}, "an eventless world proves little"


def test_what_a_leaf_did_is_done_again_offline_its_fits_included() -> None:
    """A timer's answer says whether a fit goes on, so a fit that came out otherwise would show."""
    recorder, _ = eventful(plan("discrete/latency", told=False))
    for boot, lines in recorder.logs.items():
        comparison = replay(lines)
        assert comparison.same, (boot, comparison.mismatches[0])
        assert comparison.events == len(lines) - 1
    reports = [line for line in recorder.logs["root-0-0"] if b'"curve_version":9' in line]
    assert reports, "no leaf has fitted its curve nine times"


def test_a_record_tells_what_would_have_been_otherwise() -> None:
    """The other way round: another seed of the tier does not do the same."""
    recorder, _ = eventful(plan("flow/gradient", told=True))
    first, *rest = recorder.logs["root-0-0"]
    header = msgspec.json.decode(first, type=Header)
    other = msgspec.structs.replace(header, settings=msgspec.structs.replace(header.settings, seed=1))
    assert not replay([msgspec.json.encode(other) + b"\n", *rest]).same


def test_watching_changes_nothing() -> None:
    """Recorded or not, the same happens."""
    watched = plan("flow/gradient", told=True)
    assert eventful(watched)[1].seen == eventful(watched, Tier)[1].seen
