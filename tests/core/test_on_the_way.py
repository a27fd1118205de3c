"""Stale-state correction: a cell's load is what its leaves reported plus what they had not received by then."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from dlbctl.core.events import Arrival, EndpointState, Failure, Forward, State
from dlbctl.core.exchange import Exchange
from dlbctl.core.on_the_way import OVERDUE_S, WINDOW_S, OnTheWay
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.tier import Tier

ROOT = "b00t"
K = 2.0


class Cell:
    """A root tier and one cell whose leaves report when told to."""

    def __init__(self, *, leaves: int = 1, rtt_s: float = 0.02) -> None:
        self.addresses = tuple(f"http://leaf{n}:1" for n in range(leaves))
        self.tier = Tier(TierSettings("root", "here", (TargetSettings("cell", self.addresses),)), ROOT)
        self.rtt_s = rtt_s
        self.now_s = 10.0
        for leaf in range(leaves):
            self.report(leaf, rif=0, received=0)

    def report(self, leaf: int = 0, *, rif: int, received: int) -> None:
        state = EndpointState(rif=rif, k=K, received={ROOT: received, "another root": 5000})
        line = State(endpoints={"m": state})
        self.tier.state_reported(self.now_s, "cell", self.addresses[leaf], line, self.rtt_s)

    def dispatch(self, count: int = 1) -> list[Exchange]:
        actions = [self.tier.arrived(self.now_s, Arrival("id", "m")) for _ in range(count)]
        return [action.exchange for action in actions if isinstance(action, Forward)]

    def serve(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            self.tier.attempt_started(self.now_s, exchange)
            self.tier.first_byte(self.now_s, exchange, 200)

    @property
    def rif(self) -> float:
        endpoint = self.tier.endpoints["m"]
        endpoint.refresh()
        return endpoint.candidates["cell"].load * K


def test_what_was_sent_and_not_received_is_added_to_what_was_reported() -> None:
    cell = Cell()
    cell.dispatch(6)
    assert cell.rif == 6
    cell.report(rif=40, received=4)  # 36 of them other roots'
    assert cell.rif == 40 + 2
    cell.report(rif=42, received=6)
    assert cell.rif == 42


def test_a_connection_that_is_still_being_made_counts() -> None:
    """Case 10, seen from a root."""
    cell = Cell()
    cell.dispatch()
    cell.report(rif=0, received=0)
    assert cell.rif == 1


def test_attempts_that_never_got_a_connection_are_taken_off() -> None:
    cell = Cell()
    received = cell.dispatch(4)
    cell.report(rif=4, received=4)
    one, two = cell.dispatch(2)
    cell.tier.attempt_failed(cell.now_s, one, Failure.CONNECT_TIMEOUT, False, False, False, 0.0)
    assert cell.rif == 4 + 1
    cell.tier.client_gone(cell.now_s, two)
    assert cell.rif == 4
    cell.tier.client_gone(cell.now_s, received[0])
    assert len(cell.tier.exchanges) == 3


def test_several_leaves_sum_up() -> None:
    cell = Cell(leaves=2)
    cell.dispatch(10)
    cell.report(0, rif=3, received=3)
    cell.report(1, rif=4, received=4)
    assert cell.rif == 3 + 4 + 3


def test_received_counts_from_before_this_root_saw_the_leaf_are_a_baseline() -> None:
    cell = Cell(leaves=2)
    cell.tier.address_changed(cell.now_s, "cell", cell.addresses[1], False)
    cell.dispatch(2)
    cell.report(1, rif=0, received=700)
    assert cell.rif == 2


def test_lost_requests_are_dropped_although_the_root_is_never_idle() -> None:
    """With bare counts every lost request would make this cell look one fuller, for as long as it is busy."""
    cell = Cell()
    cell.dispatch(50)
    received = 30  # 20 were lost
    for _ in range(30):
        cell.report(rif=received, received=received)
        cell.now_s += 0.1
        cell.dispatch(3)
        received += 3
    cell.report(rif=received, received=received)
    assert received <= cell.rif <= received + 3  # the newest are not overdue yet
    assert len(cell.tier.exchanges) == received + 20


def test_what_is_late_for_once_is_not_taken_for_lost() -> None:
    """In some report of every window nothing was overdue, so nothing is dropped."""
    way = OnTheWay()
    received = 0
    way.reported(0.0, "leaf", received, 0.02)
    for second in range(5):
        for tenth in range(10):
            now_s = second + tenth / 10
            way.sent(now_s)
            if tenth % 3 == 0:  # in between nothing is received, and all that was sent is overdue
                received = 10 * second + tenth + 1
            way.reported(now_s + 0.09, "leaf", received, 0.02)
            assert len(way) == 10 * second + tenth + 1 - received


def test_a_restarted_leaf_counts_from_zero_again() -> None:
    cell = Cell()
    cell.dispatch(10)
    cell.report(rif=10, received=8)
    cell.report(rif=0, received=0)
    assert cell.rif == 0
    cell.dispatch(4)
    assert cell.rif == 4
    cell.report(rif=4, received=4)
    assert cell.rif == 4


def test_what_was_on_the_way_to_a_dead_leaf_is_lost() -> None:
    cell = Cell(leaves=2)
    cell.dispatch(10)
    cell.report(0, rif=5, received=5)
    cell.tier.address_changed(cell.now_s, "cell", cell.addresses[1], False)
    assert cell.rif == 5
    cell.report(1, rif=0, received=0)
    cell.dispatch(2)
    cell.report(0, rif=6, received=6)
    cell.report(1, rif=1, received=1)
    assert cell.rif == 7


def test_a_restarted_root_begins_with_what_is_reported_of_the_others() -> None:
    cell = Cell()
    line = State(endpoints={"m": EndpointState(rif=17, k=K, received={"its former self": 900})})
    cell.tier.state_reported(cell.now_s, "cell", cell.addresses[0], line, 0.02)
    assert cell.rif == 17
    cell.dispatch(2)
    assert cell.rif == 19


def test_a_leaf_counts_what_it_refuses_too() -> None:
    leaf = Tier(TierSettings("leaf", "cell", (TargetSettings("s", ("http://s:1",), ("m",)),)), "leaf")
    leaf.arrived(0.0, Arrival("id", "m", root=ROOT))  # 503, its only server is down
    leaf.targets_changed([])
    leaf.arrived(0.0, Arrival("id", "m", root=ROOT))  # 404
    assert leaf.report(0.0).endpoints["m"].received == {ROOT: 2}


def test_a_leaf_remembers_a_bounded_number_of_roots() -> None:
    leaf = Tier(TierSettings("leaf", "cell", (TargetSettings("s", ("http://s:1",), ("m",)),)), "leaf")
    for number in range(200):
        leaf.arrived(0.0, Arrival("id", "m", root=f"root{number}"))
        leaf.arrived(0.0, Arrival("id", "m", root="steady"))
    received = leaf.report(0.0).endpoints["m"].received
    assert len(received) == 64
    assert received["steady"] == 200


@pytest.mark.parametrize("lost_share", [0.0, 0.1])
def test_in_a_simulated_stream_the_correction_follows_the_truth(lost_share: float) -> None:
    """200 requests/s over 40 ms one way, reports each 10 ms and as long on their way back.

    Truth: sent, not lost, and not received when the report left. Without losses the estimate is exact, at most
    an interval behind. With a tenth lost it may hold the losses of two windows (40) and what is late without
    being overdue (10); the tolerance is for chance. Two bare counts would be 600 off at the end.
    """
    rng = Random(5)
    tau_s, rate, step_s = 0.04, 200, 0.01
    each_step = int(rate * step_s)
    travelling: deque[list[bool]] = deque()
    way = OnTheWay()
    received = 0
    errors = []
    for tick in range(3000):
        now_s = tick * step_s
        if len(travelling) > 2 * tau_s / step_s:
            received += sum(travelling.popleft())
        way.reported(now_s, "leaf", received, 2 * tau_s)
        errors.append(len(way) - sum(map(sum, travelling)))
        travelling.append([rng.random() >= lost_share for _ in range(each_step)])
        for _ in range(each_step):
            way.sent(now_s)
    settled = errors[300:]
    assert min(settled) >= -each_step
    if lost_share == 0.0:
        assert max(settled) == 0
    else:
        assert max(settled) <= 1.3 * (lost_share * rate * 2 * WINDOW_S + rate * OVERDUE_S)
