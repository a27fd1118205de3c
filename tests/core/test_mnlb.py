"""The network latency balancer in a root: what it asks for, what it does with the answer, what it does without."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import sqrt
from types import MappingProxyType

import msgspec
import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.events import Arrival, EndpointState, Event, Forward, Solve, State
from dlbctl.core.mechanisms.mnlb import PERIOD_S, RETRY_S
from dlbctl.core.offline import VERSION, Action, Entry, Header, outcome, replay
from dlbctl.core.programs import NetworkLatencyProgram, NetworkLatencySolution, Solution, solve
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from dlbctl.router.eventlog import RecordedTier

CURVE = Curve(a=1.0, b=0.1, c=6.0, s=1.5, version=1, samples=100.0)  # 10 requests/s a server
ARRIVALS = {"a": {"a": 4.0}, "b": {"a": 2.0, "b": 9.0}, "c": {}}
TAU_S = {"a": {"a": 0.001, "b": 0.03}, "b": {"a": 0.02, "b": 0.001}, "c": {"a": 0.2}}
K = {"a": 1.0, "b": 3.0, "c": 4.0}
NOW_S = 50.0
FROM_A = {"a": 0.75, "b": 0.25, "c": 0.0}


def settings(
    cells: str = "abc", policy: str = "mnlb", capacity_rps: Mapping[str, float] = MappingProxyType({})
) -> TierSettings:
    targets = tuple(
        TargetSettings(cell, (f"http://{cell}:1",), capacity_rps=capacity_rps.get(cell, 0.0)) for cell in cells
    )
    return TierSettings("root", "a", targets, (EndpointSettings("m", policy),), seed=3)


def report(tier: Tier, cell: str, *, curve: Curve | None = None, now_s: float = NOW_S) -> None:
    endpoint = EndpointState(k=K[cell], arrivals=ARRIVALS[cell], curve_version=int(curve is not None), curve=curve)
    state = State(cell=cell, sources=TAU_S[cell], endpoints={"m": endpoint})
    tier.state_reported(now_s, cell, f"http://{cell}:1", state, 2.0 * TAU_S[cell]["a"])


def root(cells: str = "abc", capacity_rps: Mapping[str, float] = MappingProxyType({})) -> Tier:
    tier = Tier(settings(cells, capacity_rps=capacity_rps), "b00t")
    for cell in cells:
        report(tier, cell)
    return tier


def asked(tier: Tier, now_s: float = NOW_S) -> NetworkLatencyProgram | None:
    wanted = tier.timer_fired(now_s).solve
    assert len(wanted) <= 1
    return wanted[0].program if wanted else None


def plan(shares: dict[str, float], sources: tuple[str, ...] = ("a", "b")) -> Solution:
    """A solution in which every source has these shares."""
    return NetworkLatencySolution(tuple(shares), sources, (tuple(shares.values()),) * len(sources), 0.85)


def chosen(tier: Tier, count: int = 2000) -> tuple[dict[str, float], set[str]]:
    """The share of requests that each cell gets, and the rules they went by."""
    actions = [tier.arrived(NOW_S, Arrival("id", "m")) for _ in range(count)]
    forwards = [action for action in actions if isinstance(action, Forward)]
    assert len(forwards) == count
    counts = Counter(action.exchange.candidate.target.name for action in forwards if action.exchange.candidate)
    return {cell: counts[cell] / count for cell in tier.targets}, {action.rule for action in forwards}


def near(share: float, count: int = 2000) -> object:
    """Within four standard deviations: one chance in 10^4, and the seed is fixed."""
    return pytest.approx(share, abs=4 * sqrt(share * (1 - share) / count))


def assert_by_weight(tier: Tier) -> None:
    shares, rules = chosen(tier)
    assert rules == {"drawn"}
    assert shares == {cell: near(K[cell] / sum(K[c] for c in tier.targets)) for cell in tier.targets}


# -- what it asks for --------------------------------------------------------------------------------------


def test_asks_for_the_plan_of_all_sources_by_what_their_leaves_report() -> None:
    program = asked(root(capacity_rps={"a": 10.0, "b": 20.0, "c": 5.0}))
    assert program == NetworkLatencyProgram(
        cells=("a", "b", "c"),
        capacities=(10.0, 60.0, 20.0),
        sources=("a", "b"),
        rates=(6.0, 9.0),
        # The cell c was never told how far it is from b: b does not send there.
        tau_s=((0.001, 0.02, 0.2), (0.03, 0.001, None)),
    )


def test_asks_again_after_the_period_whatever_became_of_the_last() -> None:
    tier = root()
    assert asked(tier) is not None
    assert asked(tier, NOW_S + PERIOD_S - 0.01) is None
    assert asked(tier, NOW_S + PERIOD_S) is not None


def test_asks_for_nothing_with_nothing_to_choose_or_before_its_own_arrivals_are_known() -> None:
    assert asked(root("a")) is None
    assert asked(root("c")) is None
    tier = root("bc")
    assert asked(tier) is not None  # what comes from a is known at b
    tier = root("bc")
    tier.state_reported(NOW_S, "b", "http://b:1", State(endpoints={"m": EndpointState(k=1.0)}), 0.02)
    assert asked(tier) is None
    report(tier, "b")
    assert asked(tier, NOW_S + RETRY_S) is not None


def test_other_policies_and_leaves_ask_for_nothing() -> None:
    tier = Tier(settings(policy="weighted-random"), "b00t")
    for cell in "abc":
        report(tier, cell)
    assert asked(tier) is None
    servers = tuple(TargetSettings(name, (f"http://{name}:1",), ("m",)) for name in "st")
    leaf = Tier(TierSettings("leaf", "a", servers, (EndpointSettings("m", "mnlb"),)), "b00t")
    for name in "st":
        leaf.address_changed(NOW_S, name, f"http://{name}:1", True)
    assert asked(leaf) is None


def test_a_source_that_told_no_cell_its_distance_is_left_out() -> None:
    tier = root()
    for cell in "ab":
        state = State(endpoints={"m": EndpointState(k=1.0, arrivals={"a": 1.0, "old": 5.0})})
        tier.state_reported(NOW_S, cell, f"http://{cell}:1", state, 0.01)
    program = asked(tier)
    assert program is not None
    assert program.sources == ("a",)
    assert program.tau_s == ((0.005, 0.005, 0.2),)


@pytest.mark.parametrize(
    ("capacity_rps", "curve_of", "capacities"),
    [
        ({}, "", (1.0, 3.0, 4.0)),  # nothing known: in proportion to the servers
        ({"a": 8.0, "b": 2.0, "c": 5.0}, "", (8.0, 6.0, 20.0)),
        ({"a": 8.0, "b": 2.0}, "", (8.0, 6.0, 20.0)),  # c's servers are average
        ({}, "abc", (10.0, 30.0, 40.0)),
        ({"a": 8.0}, "abc", (8.0, 30.0, 40.0)),  # what is configured comes first
        ({}, "a", (10.0, 30.0, 40.0)),
    ],
)
def test_capacity_is_as_configured_else_as_the_curve_has_it_else_average(
    capacity_rps: dict[str, float], curve_of: str, capacities: tuple[float, ...]
) -> None:
    tier = root(capacity_rps=capacity_rps)
    for cell in curve_of:
        report(tier, cell, curve=CURVE)
    program = asked(tier)
    assert program is not None
    assert program.capacities == pytest.approx(capacities)


# -- what it does with a solution --------------------------------------------------------------------------


def test_goes_by_weight_until_there_is_a_plan_and_then_by_the_plan() -> None:
    tier = root()
    assert_by_weight(tier)
    assert asked(tier) is not None
    assert_by_weight(tier)
    tier.solved(NOW_S, "m", plan(FROM_A))
    shares, rules = chosen(tier)
    assert rules == {"planned"}
    assert shares == {cell: near(share) for cell, share in FROM_A.items()}


def test_goes_by_its_own_row() -> None:
    tier = Tier(msgspec.structs.replace(settings(), cell="b"), "b00t")
    for cell in "abc":
        report(tier, cell)
    program = asked(tier)
    assert program is not None
    assert program.tau_s[1] == (0.001, 0.02, 0.2)  # as it has measured itself
    tier.solved(NOW_S, "m", NetworkLatencySolution(("a", "b", "c"), ("a", "b"), ((1, 0, 0), (0, 1, 0)), 0.85))
    assert chosen(tier, 20)[0] == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_the_whole_way() -> None:
    """6 requests/s of a with 4.25 = 0.85 * 5 of room at home: the rest goes to b, which has it."""
    tier = root(capacity_rps={"a": 5.0, "b": 20.0, "c": 20.0})
    program = asked(tier)
    assert program is not None
    tier.solved(NOW_S, "m", solve(program))
    assert chosen(tier)[0] == {"a": near(4.25 / 6), "b": near(1.75 / 6), "c": 0.0}


def test_a_cell_that_has_come_since_has_its_share_by_weight() -> None:
    tier = root("ab")
    asked(tier)
    tier.solved(NOW_S, "m", plan({"a": 0.25, "b": 0.75}))
    tier.targets_changed(settings("abc").targets)
    report(tier, "c")
    assert chosen(tier)[0] == {"a": near(0.5 * 0.25), "b": near(0.5 * 0.75), "c": near(0.5)}


def test_the_shares_of_a_cell_that_is_gone_are_the_others() -> None:
    tier = root()
    asked(tier)
    tier.solved(NOW_S, "m", plan({"a": 0.6, "b": 0.1, "c": 0.3}))
    tier.address_changed(NOW_S, "a", "http://a:1", False)
    assert chosen(tier)[0] == {"a": 0.0, "b": near(0.25), "c": near(0.75)}


def test_with_no_planned_cell_left_it_goes_by_weight() -> None:
    tier = root()
    asked(tier)
    tier.solved(NOW_S, "m", plan({"a": 1.0, "b": 0.0, "c": 0.0}))
    tier.address_changed(NOW_S, "a", "http://a:1", False)
    assert chosen(tier)[0] == {"a": 0.0, "b": near(3 / 7), "c": near(4 / 7)}


def test_a_solution_that_nobody_waits_for_is_dropped() -> None:
    tier = root()
    tier.solved(NOW_S, "m", plan(FROM_A))  # not asked for
    tier.solved(NOW_S, "gone", plan(FROM_A))
    assert_by_weight(tier)
    asked(tier)
    tier.solved(NOW_S, "m", plan({"a": 1.0, "b": 0.0}))  # of other cells
    tier.solved(NOW_S, "m", plan(FROM_A, sources=("a",)))  # of other sources
    assert_by_weight(tier)
    tier.solved(NOW_S, "m", plan(FROM_A))
    tier.solved(NOW_S, "m", plan({"a": 0.0, "b": 0.0, "c": 1.0}))  # a second one
    assert chosen(tier)[0] == {cell: near(share) for cell, share in FROM_A.items()}


def test_a_solution_for_another_policy_is_dropped() -> None:
    tier = root()
    asked(tier)
    tier.policy_set(NOW_S, "m", "weighted-random")
    tier.solved(NOW_S, "m", plan(FROM_A))
    assert_by_weight(tier)
    tier.policy_set(NOW_S, "m", "mnlb")
    tier.solved(NOW_S, "m", plan(FROM_A))  # asked for by the mnlb before
    assert_by_weight(tier)


def test_a_solution_with_a_cell_that_was_taken_away_is_dropped() -> None:
    tier = root()
    asked(tier)
    tier.targets_changed(settings("ab").targets)
    tier.solved(NOW_S, "m", plan(FROM_A))
    assert_by_weight(tier)


# -- the law -----------------------------------------------------------------------------------------------


def recorded() -> list[bytes]:
    """The log of a root that asks for plans, has some, and sends requests by them."""
    lines = [msgspec.json.encode(Header(VERSION, 0, "b00t", settings())) + b"\n"]

    def note(at_s: float, event: Event, action: Action | None) -> None:
        lines.append(msgspec.json.encode(Entry(at_s, event, outcome(action))) + b"\n")

    tier = RecordedTier(settings(), "b00t", note)
    wanted: tuple[Solve, ...] = ()
    for second in range(40):
        now_s = NOW_S + second
        for cell in "abc":
            report(tier, cell, now_s=now_s)
        for solve_ in wanted:
            tier.solved(now_s, solve_.endpoint, solve(solve_.program))
        wanted = tier.timer_fired(now_s + 0.5).solve
        for number in range(5):
            tier.arrived(now_s + 0.1 * number, Arrival(f"{second}-{number}", "m"))
    return lines


def test_a_log_with_solutions_replays_to_the_same_actions() -> None:
    lines = recorded()
    assert sum(b'"Solved"' in line for line in lines) == 4
    comparison = replay(lines)
    assert comparison.same
    assert comparison.events == len(lines) - 1


def test_a_replay_goes_by_the_recorded_solutions_and_solves_nothing() -> None:
    lines = recorded()
    at = next(number for number, line in enumerate(lines) if b'"Solved"' in line)
    lines[at] = re.sub(rb'"shares":\[\[[^]]*', b'"shares":[[0.0,1.0,0.0', lines[at])
    first = replay(lines).mismatches[0]
    assert first.line > at
    assert first.recorded != first.replayed


def test_a_replay_that_asks_for_another_program_is_noticed() -> None:
    lines = [line.replace(b'"arrivals":{"a":4.0}', b'"arrivals":{"a":5.0}') for line in recorded()]
    mismatch = replay(lines).mismatches[0]
    assert b'"TimerFired"' in lines[mismatch.line - 1]
