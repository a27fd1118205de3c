"""The network latency program against what comes out by hand."""

from __future__ import annotations

import msgspec
import pytest

from dlbctl.core.programs import NetworkLatencyProgram, Program, Solution, UnsolvedError, solve

Row = tuple[float, ...]
NEAR_S, FAR_S = 0.001, 0.050


def program(
    capacities: Row, rates: Row, *tau_s: tuple[float | None, ...], scale: float = 1.0, stretch: float = 1.0
) -> NetworkLatencyProgram:
    return NetworkLatencyProgram(
        tuple(f"cell{number}" for number in range(len(capacities))),
        tuple(scale * capacity for capacity in capacities),
        tuple(f"source{number}" for number in range(len(rates))),
        tuple(scale * rate for rate in rates),
        tuple(tuple(None if tau is None else stretch * tau for tau in row) for row in tau_s),
    )


def assert_solved(asked: NetworkLatencyProgram, utilisation: float, *shares: Row) -> None:
    solution = solve(asked)
    assert (solution.cells, solution.sources) == (asked.cells, asked.sources)
    assert solution.utilisation == pytest.approx(utilisation)
    for found, wanted in zip(solution.shares, shares, strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)


HOME = ((NEAR_S, FAR_S), (FAR_S, NEAR_S))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
@pytest.mark.parametrize("stretch", [1.0, 1e-4, 100.0])
@pytest.mark.parametrize(
    ("capacities", "rates", "tau_s", "utilisation", "shares"),
    [
        # Room for all nearby.
        ((100.0, 100.0), (20.0,), ((NEAR_S, FAR_S),), 0.85, ((1.0, 0.0),)),
        # 17 = 0.85 * 20 of 20 nearby.
        ((20.0, 100.0), (20.0,), ((NEAR_S, FAR_S),), 0.85, ((0.85, 0.15),)),
        # 17 of the first one's 30 at home, the rest abroad, where that leaves room: 13 + 10 < 34.
        ((20.0, 40.0), (30.0, 10.0), HOME, 0.85, ((17 / 30, 13 / 30), (0.0, 1.0))),
        # Who gains 49 ms by the small cell has it before who gains 10 ms.
        ((20.0, 100.0), (10.0, 10.0), ((0.001, 0.05), (0.02, 0.03)), 0.85, ((1.0, 0.0), (0.7, 0.3))),
        # As much as there is capacity for: both full, whatever the distance.
        ((20.0, 40.0), (45.0, 15.0), HOME, 1.0, ((20 / 45, 25 / 45), (0.0, 1.0))),
        # Twice as much as that.
        ((20.0, 40.0), (90.0, 30.0), HOME, 2.0, ((40 / 90, 50 / 90), (0.0, 1.0))),
        # The second cell is not for the first source, although its own is over full: 30 of 20.
        ((20.0, 40.0), (30.0, 10.0), ((NEAR_S, None), HOME[1]), 1.5, ((1.0, 0.0), (0.0, 1.0))),
        # Without distances only room counts, and there is just enough at the target: 51 = 0.85 * 60.
        ((20.0, 40.0), (51.0,), ((0.0, 0.0),), 0.85, ((1 / 3, 2 / 3),)),
        # A source that hardly asks for anything has a plan too.
        ((20.0, 100.0), (10.0, 1e-4), HOME, 0.85, ((1.0, 0.0), (0.0, 1.0))),
    ],
)
def test_by_hand(
    capacities: Row,
    rates: Row,
    tau_s: tuple[tuple[float | None, ...], ...],
    utilisation: float,
    shares: tuple[Row, ...],
    scale: float,
    stretch: float,
) -> None:
    """Units do not matter."""
    assert_solved(program(capacities, rates, *tau_s, scale=scale, stretch=stretch), utilisation, *shares)


def test_shares_are_shares() -> None:
    asked = program(tuple(7.0 + n for n in range(30)), tuple(1.0 + n for n in range(20)), *_distances(20, 30))
    solution = solve(asked)
    for row in solution.shares:
        assert sum(row) == pytest.approx(1.0)
        assert all(0.0 <= share <= 1.0 for share in row)
    for cell, capacity in enumerate(asked.capacities):
        inflow = sum(rate * row[cell] for rate, row in zip(asked.rates, solution.shares, strict=True))
        assert inflow <= solution.utilisation * capacity * (1 + 1e-6)


def _distances(sources: int, cells: int) -> list[tuple[float, ...]]:
    return [tuple((7 * source + 5 * cell) % 23 / 100 for cell in range(cells)) for source in range(sources)]


def test_a_source_that_may_send_nowhere_is_told() -> None:
    with pytest.raises(UnsolvedError, match=r"no plan for 2 sources and 1 cells: .*infeasible"):
        solve(program((1.0,), (1.0, 1.0), (NEAR_S,), (None,)))


def test_programs_and_solutions_travel_as_json() -> None:
    asked = program((20.0, 40.0), (30.0,), (NEAR_S, None))
    assert msgspec.json.decode(msgspec.json.encode(asked), type=Program) == asked
    solution = solve(asked)
    assert msgspec.json.decode(msgspec.json.encode(solution), type=Solution) == solution
