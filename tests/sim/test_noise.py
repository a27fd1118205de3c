"""Wrong curves: whose decisions they reach, and how a report sets each amount of error against none."""

from __future__ import annotations

import pytest
from msgspec import structs

from dlbctl.sim.baseline import Experiment, Report, compare
from dlbctl.sim.contender import parse_contenders
from dlbctl.sim.noise import noise_report
from dlbctl.sim.scenario import Recipe
from dlbctl.sim.tables import noise_tables
from tests.sim.rendered import rendered

SMALL = Recipe(cells_min=2, cells_max=2, servers_mean=2.0, utilisation=0.6)
BY_CURVES = ("discrete/latency", "discrete/gradient", "flow/latency", "flow/gradient")
NOT_BY_CURVES = ("weighted-random", "discrete/rif", "mnlb")


@pytest.fixture(scope="module")
def report() -> Report:
    return compare(
        Experiment(
            recipes=tuple(structs.replace(SMALL, noise=noise) for noise in (0.0, 0.8)),
            contenders=parse_contenders([*NOT_BY_CURVES, *BY_CURVES]),
            scenarios=1,
            trials=1,
            duration_s=5.0,
            warm_up_s=8.0,
            seed=3,
            optimum=False,
        ),
        jobs=1,
        watch=lambda _: None,
    )


def test_errors_of_curves_reach_every_decision_by_curves_and_no_other(report: Report) -> None:
    exact, wrong = ({row.policy: row.figures.cell_shares for row in case.trials} for case in report.cases)
    assert {policy for policy, shares in exact.items() if shares != wrong[policy]} == set(BY_CURVES)


def test_each_noise_is_set_against_the_same_policy_without(report: Report) -> None:
    exact, wrong = ({row.policy: row.figures.mean_s for row in case.trials} for case in report.cases)
    found = {(one.policy, one.noise): one.mean for one in noise_report(report).degradations}
    assert len(found) == 14
    for (policy, noise), mean in found.items():
        assert mean is not None
        mean_s, exact_s = wrong[policy], exact[policy]
        assert mean_s is not None
        assert exact_s is not None
        assert mean.mean == pytest.approx(mean_s / exact_s if noise else 1.0)


def test_people_see_policies_by_noise(report: Report) -> None:
    lines = rendered(*noise_tables(noise_report(report))).splitlines()
    titles = ("mean / Rand", "p90 / Rand", "errors [%]", "mean / without noise")
    assert [lines.index(title) for title in titles] == [0, 10, 20, 30]
    assert lines[1].split() == ["POLICY", "NOISE", "0", "NOISE", "0.8"]
    assert lines[32].split() == ["weighted-random", "1.000", "1.000"]
