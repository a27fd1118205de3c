"""Fleets from files and from what roots show, what is otherwise of them, and traces that come to them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.errors import DlbctlError, UsageError
from dlbctl.core.session import session_of
from dlbctl.core.snapshot import CellRow, CurveRow, EndpointRow
from dlbctl.engine.profile import load_profile
from dlbctl.replay.selection import Selection
from dlbctl.replay.targets import parse_targets, ranked
from dlbctl.replay.trace import read_trace
from dlbctl.sim.plan import BatchingPlan, RatePlan
from dlbctl.sim.whatif.changes import WhatIf
from dlbctl.sim.whatif.compare import Row, capacity_of, cases_of, compare
from dlbctl.sim.whatif.fleet import Fleet, Told, check_one_way
from dlbctl.sim.whatif.fleet_file import fleet_of_fleet_file
from dlbctl.sim.whatif.parsing import parse_changes, parse_policies, parse_told
from dlbctl.sim.whatif.report import simulate
from dlbctl.sim.whatif.root_file import fleet_of_root_files
from dlbctl.sim.whatif.running import Seen, fleet_of_running
from dlbctl.sim.whatif.traffic import CHAT_TOKENS, Traffic, read_traffic
from tests.acceptance.commands import EXAMPLES

SHORT = EXAMPLES / "traces" / "short.jsonl"
ROOT = EXAMPLES / "configs" / "three-regions" / "root.toml"
SINGLE = EXAMPLES / "configs" / "single.toml"
FLEET = """
policy = "discrete/rif"
time_factor = 4.0
jitter_ms = 2.0
[[region]]
name = "us-ashburn"
engines = 2
slots = 8
[[region]]
name = "eu-frankfurt"
engines = 3
slowdown = 2.0
demand = 0.0
[delay_ms.us-ashburn]
eu-frankfurt = 40
[delay_ms.eu-frankfurt]
us-ashburn = 50
[override.root.root]
probe_interval_ms = 20.0
seed = 7
[override.root.retries]
attempts = 2
[override.leaf.queue]
size = 5
max_wait_s = 1.5
"""


def told(**given: list[str]) -> Told:
    values = {"cells": given.get("cells"), "one_way": given.get("one_way"), "weights": given.get("weights")}
    return parse_told(profile=None, time_factor=None, endpoint=None, **values)


def what_if(**given: Sequence[str]) -> WhatIf:
    options = {name: given.get(name) for name in ("lose", "slow", "servers", "add")}
    return WhatIf(parse_changes(**options, told=Told()))


def traffic(path: Path = SHORT, **selected: int) -> Traffic:
    return read_traffic(path, Selection(**selected), speedup=1.0, max_output=0, block_tokens=512)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return fleet_of_fleet_file(path, Told())


def rows(fleet: Fleet, otherwise: WhatIf, *policies: str, trace: Traffic | None = None) -> list[Row]:
    cases = cases_of(fleet, policies, otherwise)
    return list(compare(cases, trace or traffic(), warm_up_s=0.0, watch=lambda _: None))


# -- fleets ----------------------------------------------------------------------------------------------


def test_a_fleet_file_is_the_fleet_that_up_would_start(fleet: Fleet) -> None:
    plan = fleet.plan
    near, far = plan.cells
    assert near.servers == (BatchingPlan(load_profile("l40s"), 4.0, 1.0, 256),) * 2
    assert far.servers == (BatchingPlan(load_profile("l40s"), 2.0, 1.0, 256),) * 3
    assert (near.slots, far.slots, near.queue_size, near.queue_wait_s) == (8, 0, 5, 1.5)
    assert plan.one_way_s["us-ashburn", "us-ashburn"] == 0.0
    # Half of the way there and back, each with half of the jitter.
    assert plan.one_way_s["us-ashburn", "eu-frankfurt"] == pytest.approx(0.046)
    assert (plan.policy, plan.probe_interval_s, plan.seed, plan.retries.attempts) == ("discrete/rif", 0.02, 7, 2)
    assert fleet.weights == (1.0, 0.0)
    assert fleet.assumed == ()


def test_of_a_root_file_what_is_assumed_is_said() -> None:
    found = fleet_of_root_files([ROOT], told(cells=["us-ashburn=2", "eu-frankfurt=1", "ap-seoul=1:h100"]))
    assert [len(cell.servers) for cell in found.plan.cells] == [2, 1, 1]
    assert [profile.name for profile in found.profiles] == ["l40s", "h100"]
    assert found.plan.one_way_s["us-ashburn", "ap-seoul"] == 0.093
    assert found.plan.policy == "discrete/gradient"
    assert "servers are engines of the profile l40s (--profile), as fast as life (--time-factor)" in found.assumed
    assert any("ap-seoul 93 ms (table of cloud regions" in text for text in found.assumed)
    beside = fleet_of_root_files([SINGLE], Told())
    assert "here is beside its root, 0.5 ms away (--one-way)" in beside.assumed
    assert len(beside.plan.cells[0].servers) == 2


def test_of_a_root_file_what_cannot_be_known_is_asked_for() -> None:
    with pytest.raises(UsageError, match="us-ashburn, ap-seoul: what servers there are is in the files of") as missing:
        fleet_of_root_files([ROOT], told(cells=["eu-frankfurt=1"]))
    assert missing.value.hint == "--cell us-ashburn=N,ap-seoul=N says how many"
    with pytest.raises(UsageError, match="the file lists 2 servers"):
        fleet_of_root_files([SINGLE], told(cells=["here=3"]))
    with pytest.raises(UsageError, match="--cell: there is no cell 'her'"):
        fleet_of_root_files([SINGLE], told(cells=["her=3"]))


def test_a_running_cell_is_its_curve_or_the_engines_that_are_told() -> None:
    curve = Curve(1.0, 0.1, 4.0, 1.0)
    seen = Seen(
        "a",
        [CellRow(cell=name, endpoint="m", up=True, routable=True, k=3.0, rif=0, load=0, in_flight=0, rtt_s=0.1)
         for name in ("a", "b")],
        [CurveRow(cell=name, endpoint="m", curve=curve, load=0, latency_s=1, gradient_s=1, why="") for name in ("a",)],
        [EndpointRow(endpoint="m", policy="discrete/rif", configured_policy="", overridden=False, cost="", unit="",
                     why="", routable=2, candidates=2, in_flight=0, waiting=0, panic=False, tokens_per_byte=0.25,
                     output_tokens=1)],
    )  # fmt: skip
    with pytest.raises(UsageError, match="cell b has no latency curve yet"):
        fleet_of_running([seen], Told())
    engines = fleet_of_running([seen], Told(profile="h100", time_factor=2.0))
    assert engines.plan.cells[1].servers == (BatchingPlan(load_profile("h100"), 2.0, 1.0, 256),) * 3
    known = Seen("a", seen.cells[:1], seen.curves, seen.endpoints)
    found = fleet_of_running([known], Told())
    assert found.plan.cells[0].servers == (RatePlan(curve, 3.0),)
    assert found.plan.one_way_s == {("a", "a"): 0.05}
    assert any("fitted latency curve" in text for text in found.assumed)
    # What such a server says of its first byte is no time to first token.
    assert rows(found, WhatIf())[0].figures.ttft_mean_s is None


# -- what if ---------------------------------------------------------------------------------------------


def test_all_changes_are_one_question_beside_the_fleet_as_it_is(fleet: Fleet) -> None:
    otherwise = replace(what_if(slow=["us-ashburn=2"], servers=["eu-frankfurt=1"]), demand=1.3)
    cases = cases_of(fleet, ["discrete/rif", "discrete/latency"], otherwise)
    assert [(case.policy, case.name) for case in cases] == [
        ("discrete/rif", "as it is"),
        ("discrete/latency", "as it is"),
        ("discrete/rif", "eu-frankfurt with 1 server, us-ashburn 2 times slower, demand x 1.3"),
        ("discrete/latency", "eu-frankfurt with 1 server, us-ashburn 2 times slower, demand x 1.3"),
    ]
    near, far = cases[2].fleet.plan.cells
    assert capacity_of(near, traffic()) == pytest.approx(capacity_of(fleet.plan.cells[0], traffic()) / 2)
    assert len(far.servers) == 1


def test_a_slower_cell_gets_less_and_a_further_one_takes_its_share(fleet: Fleet) -> None:
    before, after = rows(fleet, what_if(slow=["us-ashburn=4"], add=["us-west-2=2"]))
    shares = [{cell.cell: cell.share for cell in row.cells} for row in (before, after)]
    assert shares[1]["us-ashburn"] < shares[0]["us-ashburn"]
    assert shares[1]["us-west-2"] > 0.1
    assert sum(shares[1].values()) == pytest.approx(1.0)


def test_more_demand_is_the_same_requests_in_less_time(fleet: Fleet) -> None:
    before, after = rows(fleet, WhatIf(demand=2.0))
    assert after.figures.requests == before.figures.requests == 60
    assert (after.load or 0.0) == pytest.approx(2.0 * (before.load or 0.0))
    assert after.figures.mean_s is not None
    assert after.over_first == pytest.approx(after.figures.mean_s / (before.figures.mean_s or 0.0))
    assert (after.over_first or 0.0) > 1.0


def test_a_cell_lost_on_the_way_costs_what_was_there_and_no_more(fleet: Fleet) -> None:
    gone_from_the_start = rows(fleet, what_if(lose=["eu-frankfurt"]))[1]
    assert [cell.cell for cell in gone_from_the_start.cells] == ["us-ashburn"]
    assert gone_from_the_start.figures.errors == 0
    lost = rows(fleet, what_if(lose=["eu-frankfurt@5"]))[1]
    assert 0 < lost.figures.errors < 15
    assert set(lost.figures.reasons) == {"upstream_closed"}
    assert lost.cells[1].share < rows(fleet, WhatIf())[0].cells[1].share


def test_limits_and_queues_of_the_files_hold(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.replace("seed = 7", "seed = 7\nmax_in_flight = 1"))
    at_the_root = rows(fleet_of_fleet_file(path, Told()), WhatIf())[0].figures
    path.write_text(FLEET.replace("slots = 8", "slots = 1").replace("max_wait_s = 1.5", "max_wait_s = 0.001"))
    at_a_leaf = rows(fleet_of_fleet_file(path, Told()), what_if(lose=["eu-frankfurt"]))[1].figures
    assert set(at_the_root.reasons) == {"endpoint_full"}
    assert set(at_a_leaf.reasons) == {"queue_timeout"}


def test_a_timed_change_is_nothing_before_its_time(fleet: Fleet) -> None:
    as_it_is, late = rows(fleet, what_if(slow=["us-ashburn=9@9.98"], servers=["eu-frankfurt=9@9.98"]))
    early = rows(fleet, what_if(slow=["us-ashburn=9@1"]))[1]
    # By then every first token is there, and what is still decoding is all that is slowed down.
    assert late.figures.ttft_p99_s == as_it_is.figures.ttft_p99_s
    assert (early.figures.ttft_p99_s or 0.0) > (as_it_is.figures.ttft_p99_s or 0.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lose": ["us-ashbrn"]}, "did you mean us-ashburn"),
        ({"lose": ["us-ashburn", "eu-frankfurt@3"]}, "no cell is left"),
        ({"lose": ["us-ashburn,us-ashburn@3"]}, "us-ashburn: the same is said of it twice"),
        ({"lose": ["us-ashburn"], "servers": ["us-ashburn=5"]}, "nothing would be seen of the first"),
        ({"lose": ["us-ashburn@3"], "slow": ["us-ashburn=5@3"]}, "nothing would be seen of the first"),
        ({"add": ["us-west-2=1"], "lose": ["us-west-2"]}, "nothing would be seen of the first"),
        ({"add": ["us-west-2=1"], "servers": ["us-west-2=3"]}, "two numbers of servers"),
        ({"slow": ["us-ashburn=1e300"]}, "from 0.0001 to 10000"),
        ({"servers": ["us-ashburn=100000"]}, "a cell has 5000 servers at most"),
        ({"servers": ["us-ashburn=" + "9" * 5000]}, "a cell has 5000 servers at most"),
        ({"lose": [","]}, "--lose ',': names nothing"),
        ({"slow": ["us-ashburn=0"]}, "--slow us-ashburn=0: must be a number above 0"),
        ({"slow": ["us-ashburn"]}, "--slow us-ashburn: not understood"),
        ({"servers": ["us-ashburn=0"]}, "--lose us-ashburn takes it away"),
        ({"servers": ["us-ashburn=2:h100"]}, "further servers are like the others"),
        ({"add": ["us-ashburn=2"]}, "there is such a cell already"),
        ({"add": ["moon=2"]}, "the network delay from us-ashburn to moon is not known"),
        ({"add": ["us-west-2=2:h10"]}, "no engine profile 'h10'\n  did you mean h100?"),
        ({"lose": ["us-ashburn@-1"]}, "cannot be negative"),
        ({"lose": ["us-ashburn@soon"]}, "'soon' is no number"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_simulated(
    fleet: Fleet, given: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(DlbctlError) as refused:
        cases_of(fleet, (), what_if(**given))
    assert message in str(refused.value)


def test_what_comes_before_a_cell_is_lost_is_no_contradiction(fleet: Fleet) -> None:
    otherwise = what_if(slow=["us-ashburn=2"], servers=["us-ashburn=1@2"], lose=["us-ashburn@3"])
    assert len(cases_of(fleet, (), otherwise)) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"one_way": ["us-ashburn:eu-frankfrt=5"]}, "--one-way: there is no cell 'eu-frankfrt'"),
        ({"one_way": ["us-ashbrn:moon=5"]}, "--one-way: there is no source 'us-ashbrn'"),
        ({"one_way": ["us-ashburn:moon=5", "us-ashburn:moon=6"]}, "--one-way us-ashburn:moon: is said twice"),
        ({"one_way": ["moon=1e9"]}, "is not from 0 to 60000 ms"),
        ({"weights": ["us-ashburn=1,us-ashburn=2"]}, "--weight us-ashburn: is said twice"),
        ({"weights": [","]}, "names nothing"),
    ],
)
def test_delays_and_weights_are_of_what_there_is_and_said_once(
    fleet: Fleet, given: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        check_one_way(told(**given), fleet.plan, ["moon"])
    check_one_way(told(one_way=["us-ashburn:moon=5", "moon=6"]), fleet.plan, ["moon"])


def test_a_delay_that_a_fleet_file_says_is_not_said_again(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    with pytest.raises(UsageError, match="says already how far away eu-frankfurt is"):
        fleet_of_fleet_file(path, told(one_way=["us-ashburn:eu-frankfurt=5"]))


def test_policies_of_a_fleet_may_have_a_stepsize(fleet: Fleet) -> None:
    policies = parse_policies(["flow/gradient:0.02,flow/gradient"])
    found = [case.fleet.plan for case in cases_of(fleet, policies, WhatIf())]
    assert [(plan.policy, plan.flow.stepsize) for plan in found] == [("flow/gradient", 0.02), ("flow/gradient", 0.0)]
    for text in ("mnlb:nominal", "discret/rif", ",", "flow/gradient:-1"):
        with pytest.raises(UsageError, match="--policy"):
            parse_policies([text])


def test_what_would_never_end_is_not_begun(fleet: Fleet) -> None:
    for otherwise, trace in ((WhatIf(demand=1e-9), traffic()), (WhatIf(), replace(traffic(), speedup=1e-9))):
        with pytest.raises(UsageError, match="steps") as refused:
            simulate(fleet, trace, SHORT, (), otherwise, warm_up_s=0.0, watch=lambda _: None, warn=lambda _: None)
        assert "--demand" in (refused.value.hint or "")


def test_demand_and_utilisation_are_of_the_part_of_the_run_that_counts(fleet: Fleet) -> None:
    """What a cell that is lost half-way serves at most is half of it: its utilisation is not diluted."""
    trace, from_s = traffic(), 4.0
    [case] = cases_of(fleet, (), WhatIf())
    lost = replace(case, what_if=what_if(lose=["eu-frankfurt@7"]))
    [row] = compare([lost], trace, warm_up_s=from_s, watch=lambda _: None)
    counted_s = trace.span_s - from_s
    counted = sum(one.timestamp_s >= from_s for one in trace.rows)
    assert row.figures.requests == counted
    near, far = (capacity_of(cell, trace) for cell in fleet.plan.cells)
    far *= (7.0 - from_s) / counted_s
    assert row.demand_rps == pytest.approx(counted / counted_s)
    assert row.load == pytest.approx(counted / counted_s / (near + far))
    assert row.cells[1].utilisation == pytest.approx(row.cells[1].share * counted / counted_s / far)


def test_of_a_single_instant_no_demand_is_told(fleet: Fleet) -> None:
    [row] = rows(fleet, WhatIf(), trace=traffic(limit=1))
    assert (row.demand_rps, row.load, [cell.utilisation for cell in row.cells]) == (None, None, [None, None])


# -- traces ----------------------------------------------------------------------------------------------


def test_sessions_come_to_the_root_that_replay_would_send_them_to() -> None:
    targets = parse_targets(["a=http://127.0.0.1:1=2,b=http://127.0.0.1:2=1"])
    expected = [ranked(targets, row.session)[0].name for row in read_trace(SHORT).rows]
    found = list(traffic().arrivals(["a", "none", "b"], [2.0, 0.0, 1.0], demand=2.0, engine_block_tokens=16))
    assert [["a", "none", "b"][one.source] for one in found] == expected
    assert [one.session for one in found] == [session_of(row.session.encode()) for row in read_trace(SHORT).rows]
    first = read_trace(SHORT).rows[-1]
    assert found[-1].at_s == first.timestamp_s / 2.0
    assert found[-1].prompt_tokens == first.input_tokens + CHAT_TOKENS


def test_an_azure_trace_is_read_selected_and_cut_likewise(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:17:0{second}.9799600,{100 * second + 100},{10 * second + 10}" for second in range(4)]
    path.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    selection = Selection(max_input_tokens=300, limit=2)
    found = read_traffic(path, selection, speedup=2.0, max_output=15, block_tokens=512)
    assert [(row.timestamp_s, found.answer_tokens(row)) for row in found.rows] == [(0.0, 10), (1.0, 15)]
    assert found.left_out.counts == {"over-limit": 1, "over-max-input": 1}
    assert found.span_s == 0.5


def test_what_to_beware_of_is_said_before(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    long = 140_000
    sizes = [1000] * 400 + [long]
    with path.open("w") as file:
        for at, size in enumerate(sizes):
            blocks = [0] * -(-size // 512)
            row = {"timestamp": at, "input_length": size, "output_length": 50, "hash_ids": blocks}
            file.write(json.dumps(row) + "\n")
    said: list[str] = []

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    report = simulate(fleet, traffic(path), path, (), WhatIf(), warm_up_s=0.0, watch=stop, warn=said.append)
    assert said == report.warnings
    assert said[0] == "longer than an engine takes, and left out: 1 request"
    assert "times what the cells serve: queues grow" in said[1]
    assert (report.complete, report.rows, report.requests) == (False, [], 400)
    with pytest.raises(UsageError, match="after the last request"):
        simulate(
            fleet, traffic(path), path, (), what_if(lose=["us-ashburn@1"]), warm_up_s=0.0, watch=stop, warn=said.append
        )
    with pytest.raises(UsageError, match="--warm-up 1"):
        simulate(fleet, traffic(path), path, (), WhatIf(), warm_up_s=1.0, watch=stop, warn=said.append)
