"""What is no network is refused before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

from dlbctl.core.curve import Curve
from dlbctl.core.errors import DlbctlError
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.service import Polynomial, Queue

A, B = Cell("a", 2.0, Queue(5.0)), Cell("b", 1.0, Queue(5.0))


@pytest.mark.parametrize(
    ("cells", "demand", "arcs", "message"),
    [
        ((A,), {"s": 10.0}, {("s", "a"): 0.0}, "unstable: 's' asks for 10 req.*'a', can serve"),
        ((A, B), {"s": 6.0, "t": 6.0}, {("s", "a"): 0, ("t", "b"): 0}, "unstable: 't' asks for 6 .*'b', can serve.* 5"),
        ((A, B), {"s": 6.0, "t": 1.0}, {("t", "a"): 0.0}, "source 's' may use no cell"),
        ((A,), {"s": 1.0}, {("s", "a"): -0.01}, "the delay from 's' to 'a' is -0.01 s"),
        ((A,), {"s": 1.0}, {("s", "a"): float("nan")}, "the delay from 's' to 'a' is nan s"),
        ((A,), {"s": -1.0}, {("s", "a"): 0.0}, "source 's' asks for -1 requests/s"),
        ((A,), {"s": 0.0}, {("s", "a"): 0.0}, "source 's' asks for 0 requests/s"),
        ((Cell("a", 0.0, Queue(5.0)),), {"s": 1.0}, {("s", "a"): 0.0}, "cell 'a' has 0 servers"),
        ((A, A), {"s": 1.0}, {("s", "a"): 0.0}, "cell 'a' appears twice"),
        ((A,), {"s": 1.0}, {("s", "x"): 0.0}, "'x', which is no cell"),
        ((A,), {"s": 1.0}, {("x", "a"): 0.0}, "'x', which is no source"),
        ((), {"s": 1.0}, {}, "a cell and a source at least"),
        ((A,), {}, {}, "a cell and a source at least"),
    ],
)  # fmt: skip
def test_it_says_what_is_wrong(
    cells: tuple[Cell, ...], demand: dict[str, float], arcs: dict[tuple[str, str], float], message: str
) -> None:
    with pytest.raises(DlbctlError, match=message):
        Network(cells, demand, arcs)


def test_of_several_sources_those_that_fill_their_cells_are_named() -> None:
    with pytest.raises(DlbctlError) as caught:
        Network((A, B), {"easy": 1.0, "hard": 5.5}, {("easy", "a"): 0.0, ("easy", "b"): 0.0, ("hard", "b"): 0.0})
    assert "'hard' asks for 5.5" in str(caught.value)
    assert "easy" not in caught.value.message


def test_headroom_heeds_residency() -> None:
    free = Network((A, B), {"s": 3.0, "t": 2.0}, {(s, c): 0.0 for s in "st" for c in "ab"})
    assert free.headroom == pytest.approx(1.0 - 5.0 / 15.0)
    bound = Network((A, B), {"s": 3.0, "t": 2.0}, {("s", "b"): 0.0, ("t", "a"): 0.0})
    assert bound.headroom == pytest.approx(1.0 - 3.0 / 5.0)


def test_a_link_without_a_bound_is_never_full() -> None:
    network = Network((Cell("link", 1.0, Polynomial(1.0)),), {"s": 1e9}, {("s", "link"): 0.0})
    assert network.headroom == 1.0


def test_loads_invert_rates_up_to_the_brim() -> None:
    cell = Cell("a", 7.0, Curve(0.8, 0.08, 8.0, 2.0))
    for share in (1e-9, 0.3, 0.9, 0.999999):
        rate = share * cell.capacity_rps
        assert cell.rate_rps(cell.in_flight_at(rate)) == pytest.approx(rate, rel=1e-12)
    assert cell.in_flight_at(0.0) == 0.0


def test_shares_by_servers_leave_out_what_is_not_admissible() -> None:
    network = Network((A, B), {"s": 1.0, "t": 1.0}, {("s", "a"): 0.1, ("s", "b"): 0.1, ("t", "b"): 0.1})
    assert network.by_servers == pytest.approx(np.array([[2 / 3, 1 / 3], [0.0, 1.0]]))
