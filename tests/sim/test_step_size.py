"""Theorem 1 in numbers: the bound without delays, the trade-off with them, and how fast the gap falls along it."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from dlbctl.core.errors import UsageError
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.service import Queue
from dlbctl.sim.step_size import Averages, StepSizeReport, report
from tests.sim.networks import one_place


def made(network: Network, policy: str = "flow/gradient", *more: object) -> StepSizeReport:
    return report(network, policy, *more, jobs=1, watch=lambda *_: None)  # type: ignore[arg-type]


def two_cells(*, delay_s: float) -> Network:
    """Unequal cells, one of them away."""
    cells = (Cell("near", 4.0, Queue(5.0)), Cell("far", 8.0, Queue(4.0)))
    return Network(cells, {"s": 36.0}, {("s", "near"): 0.0, ("s", "far"): delay_s})


@pytest.mark.parametrize("policy", ["flow/gradient", "flow/rif"])
def test_without_delays_the_gap_is_within_the_adaptation_term_and_comes_to_be_all_of_it(policy: str) -> None:
    """There it is proven. All of it: every cell is used, so nothing else lowers the Lyapunov function on the way to 0.

    0.1 %: steps of 10 ms.
    """
    network = one_place({"a": Queue(2.0), "b": Queue(2.5), "c": Queue(4.0)}, 5.0)
    rows = made(network, policy, (0.001, 0.3), (5.0, 30.0), 0.3).grid
    assert len(rows) == 4
    assert all(0.0 < row.gap <= 1.001 * row.adaptation for row in rows), rows
    assert rows[0].gap < 0.5 * rows[0].adaptation
    assert rows[-1].gap == pytest.approx(rows[-1].adaptation, rel=1e-3)


def test_the_adaptation_term_is_that_of_the_theorem() -> None:
    """Half the square of how far shares are off, times the demand, over T eta; optimal flows by hand."""
    network = one_place({"a": Queue(10.0), "b": Queue(40.0)}, 30.0)
    # 1/μ' = rate/(rate - z)² is the same at both: (40 - z_b) = 2 (10 - z_a).
    a = 10.0 - 20.0 / 3.0
    off = a / 30.0 - 0.5
    (row,) = made(network, "flow/gradient", (0.1,), (5.0,), 0.1).grid
    assert row.adaptation == pytest.approx(30.0 * 2.0 * off**2 / 2.0 / (5.0 * 0.1), rel=1e-4)


def test_the_gap_and_its_companions_are_means_over_the_horizon() -> None:
    """Of a stepsize that moves nothing: loads go to where the shares by servers have them, and stay."""
    network = one_place({"a": Queue(2.0), "b": Queue(4.0)}, 2.0)
    (row,) = made(network, "flow/latency", (1e-9,), (50.0,), 1.0).grid
    # Latency 1/(rate - z) is the same where z_a = 0 and z_b = 2; each gets 1 instead.
    loads, target = np.array([1.0, 1.0 / 3.0]), np.array([0.0, 1.0])
    costs, least = (1.0 + loads) / np.array([2.0, 4.0]), (1.0 + target) / np.array([2.0, 4.0])
    assert row.gap == pytest.approx(
        float((costs - least) @ np.array([1.0, -1.0])), rel=0.05
    )  # it takes a second or two
    assert row.load == pytest.approx(np.abs(loads - target).sum() / target.sum(), rel=0.05)
    assert row.demand == pytest.approx(0.5, rel=1e-6)


def test_both_small_and_large_stepsizes_stay_far_off() -> None:
    found = made(two_cells(delay_s=0.1), "flow/gradient", (), (20.0,))
    assert found.onset is not None
    gaps = {row.stepsize / found.onset: row.gap for row in found.grid}
    least = min(gaps, key=gaps.__getitem__)
    assert 0.1 < least < 0.9
    assert gaps[1 / 64] > 3.0 * gaps[least]
    assert gaps[4.0] > 3.0 * gaps[least]
    late = made(two_cells(delay_s=0.2), "flow/gradient", (4.0 * found.onset,), (20.0,)).grid[0]
    assert late.gap > gaps[4.0]  # the penalty grows with the delay


def test_along_the_line_the_gap_falls_as_the_root_of_the_horizon() -> None:
    """As 1/(T eta), the bound's first term; what delays add to it, some percent here, falls with eta."""
    found = made(two_cells(delay_s=0.1), "flow/gradient", (0.1,), (20.0, 40.0, 80.0))
    assert found.onset is not None
    assert [row.stepsize * sqrt(row.horizon_s) for row in found.line] == pytest.approx([found.factor] * 3)
    assert found.line[0].stepsize == pytest.approx(found.onset / 16)
    assert found.slope == pytest.approx(-0.5, abs=0.05)
    beside = [row.gap / row.adaptation for row in found.line]
    assert 1.1 > beside[0] > beside[1] > beside[2] > 1.0


def test_horizons_of_one_run_are_parts_of_it() -> None:
    network = two_cells(delay_s=0.05)
    together = made(network, "flow/latency", (0.3,), (8.0, 2.0), 0.1)
    alone = made(network, "flow/latency", (0.3,), (2.0,), 0.1)
    assert [row.horizon_s for row in together.grid] == [2.0, 8.0]
    assert together.grid[0] == alone.grid[0]
    assert alone.slope is None


def test_it_does_not_depend_on_the_number_of_processes() -> None:
    network = two_cells(delay_s=0.05)
    one = made(network, "flow/latency", (0.1, 0.3), (1.0,), 0.1)
    assert report(network, "flow/latency", (0.1, 0.3), (1.0,), 0.1, jobs=2, watch=lambda *_: None) == one
    assert isinstance(one.grid[0], Averages)


def test_a_policy_without_a_stepsize_is_refused() -> None:
    with pytest.raises(UsageError, match="'argmin/rif' is not what the theorem is about"):
        made(two_cells(delay_s=0.05), "argmin/rif")
