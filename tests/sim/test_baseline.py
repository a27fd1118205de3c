"""An experiment: which runs it has, what it refuses, and how figures become ratios, tables and CSV."""

from __future__ import annotations

import io

import msgspec
import pytest

from dlbctl.core.errors import DlbctlError, UsageError
from dlbctl.sim.baseline import Done, Experiment, Report, compare, report_of, tasks_of
from dlbctl.sim.calibration import Sweep
from dlbctl.sim.contender import DEFAULTS, Contender, parse_contenders
from dlbctl.sim.processes import Outcome
from dlbctl.sim.scenario import Recipe
from dlbctl.sim.statistics import RunFigures
from dlbctl.sim.tables import tables, write_csv
from dlbctl.sim.trial import Trial
from dlbctl.sim.work import refuse_endless
from tests.sim.rendered import rendered

SMALL = Recipe(cells_max=3, servers_mean=2.0)


def experiment(**changes: object) -> Experiment:
    usual = Experiment(
        recipes=(SMALL,),
        contenders=parse_contenders(["weighted-random", "argmin/rif"]),
        scenarios=3,
        trials=2,
        duration_s=10.0,
        warm_up_s=5.0,
        optimum=False,
    )
    return msgspec.structs.replace(usual, **changes)


def figures(mean_s: float | None, errors: int = 0) -> RunFigures:
    ok = 100 if mean_s is not None else 0
    return RunFigures(
        requests=ok + errors,
        ok=ok,
        errors=errors,
        unfinished=0,
        mean_s=mean_s,
        p50_s=mean_s,
        p90_s=mean_s,
        p95_s=mean_s,
        p99_s=mean_s,
        max_s=mean_s,
        statuses={},
        reasons={},
        cell_shares={},
        series=[],
    )


def done(asked: Experiment, count: int | None = None) -> Report:
    """A report of made-up runs: weighted-random takes 2 s, the other 1 s in scenario 0 and so on up to 1.2 s."""
    tasks = tasks_of(asked)
    outcome: Outcome[Done] = Outcome()
    for number, task in enumerate(tasks[:count]):
        assert isinstance(task, Trial)
        mean_s = 2.0 if task.contender.policy == "weighted-random" else 1.0 + 0.1 * task.scenario.number
        outcome.results[number] = figures(mean_s, errors=task.trial)
    return report_of(asked, tasks, outcome)


def test_every_contender_runs_in_every_trial_of_every_scenario() -> None:
    tasks = tasks_of(experiment(recipes=(SMALL, msgspec.structs.replace(SMALL, y=2.0))))
    assert len(tasks) == 2 * 3 * 2 * 2
    assert [task.contender.policy for task in tasks[:2] if isinstance(task, Trial)] == ["weighted-random", "argmin/rif"]


def test_a_cell_is_swept_once_for_all_values_of_y_and_utilisation() -> None:
    others = (
        SMALL,
        *(msgspec.structs.replace(SMALL, y=y) for y in (4.0, 10.0)),
        msgspec.structs.replace(SMALL, utilisation=0.5),
    )
    one, all_of_them = (
        [task for task in tasks_of(experiment(recipes=recipes, optimum=True)) if isinstance(task, Sweep)]
        for recipes in ((SMALL,), others)
    )
    assert one == all_of_them
    assert one


def test_ratios_are_paired_and_their_interval_is_over_scenarios() -> None:
    report = done(experiment())
    assert report.complete
    rand, other = report.cases[0].standings
    assert rand.mean is not None
    assert (rand.mean.mean, rand.mean.low, rand.mean.high) == (1.0, 1.0, 1.0)
    assert other.mean is not None
    assert other.mean.mean == pytest.approx(0.55)
    assert other.mean.samples == 3
    # t(0.975, 2) = 4.30265, SD of .5, .55 and .6 is .05
    assert other.mean.high == pytest.approx(0.55 + 4.30265 * 0.05 / 3**0.5)
    assert other.error_share is not None
    assert other.error_share.mean == pytest.approx(0.5 / 101)


def test_what_is_cut_short_counts_only_where_every_contender_has_run() -> None:
    report = done(experiment(), count=5)
    assert not report.complete
    assert (report.pairs, report.pairs_asked) == (2, 6)
    assert [(row.scenario, row.trial) for row in report.cases[0].trials] == [(0, 0), (0, 0), (0, 1), (0, 1)]


def test_nothing_done_is_a_report_too() -> None:
    report = done(experiment(), count=0)
    assert report.pairs == 0
    assert "-" in rendered(*tables(report))


def test_a_run_without_a_success_has_no_ratio() -> None:
    asked = experiment(scenarios=1, trials=1)
    tasks = tasks_of(asked)
    report = report_of(asked, tasks, Outcome({0: figures(1.0), 1: figures(None, errors=9)}))
    other = report.cases[0].standings[1]
    assert other.mean is None
    assert other.error_share is not None
    assert other.error_share.mean == 1.0


def test_a_table_names_its_case_and_has_a_line_for_each_policy() -> None:
    text = rendered(*tables(done(experiment())))
    assert "utilisation 80%, y = 1, 6 runs in 3 scenarios" in text
    line = next(line for line in text.splitlines() if line.startswith("argmin/rif"))
    assert line.split()[:4] == ["argmin/rif", "1100", "ms", "0.550"]
    assert "±0.124" in line


def test_a_table_tells_of_what_disturbs_and_of_errors() -> None:
    recipe = msgspec.structs.replace(SMALL, disturbance="burst", token_time_sd=0.0, noise=0.2)
    text = rendered(*tables(done(experiment(recipes=(recipe,), scenarios=1))))
    assert "equal hardware, burst to 95%, curve noise 0.2" in text
    assert "0.50 ±6.29 %" in text  # one of 101 in one of two trials


def test_csv_has_a_line_for_each_run() -> None:
    file = io.StringIO()
    write_csv(done(experiment()), file)
    head, first, *rest = file.getvalue().splitlines()
    assert head.startswith("utilisation,y,disturbance,token_time_sd,noise,scenario,trial,policy,requests,ok")
    assert first.startswith("0.8,1.0,none,0.2,0.0,0,0,weighted-random,100,100,0,0,2.0")
    assert len(rest) == 3 * 2 * 2 - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_s": 1e9},
        {"warm_up_s": 1e9},
        {"recipes": (msgspec.structs.replace(SMALL, y=1e9),)},
        {"recipes": (msgspec.structs.replace(SMALL, y=1e-9),)},
    ],
)
def test_what_would_never_end_is_not_begun(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="weeks of work, are not begun") as refused:
        compare(experiment(**changes), jobs=1, watch=lambda _: None)
    assert "--duration" in (refused.value.hint or "")


def test_the_papers_longest_experiment_is_begun() -> None:
    asked = Experiment((Recipe(y=10.0),), parse_contenders(list(DEFAULTS)), 10, 5, 600.0, 120.0, optimum=False)
    refuse_endless(sum(task.steps for task in tasks_of(asked) if isinstance(task, Trial)), hint="")


def test_policies_that_lose_unlike_shares_of_requests_are_not_compared_without_a_word() -> None:
    asked = experiment(trials=1)
    results: dict[int, Done] = {
        number: figures(1.0, errors=50 * (number % 2)) for number, _ in enumerate(tasks_of(asked))
    }
    alike: dict[int, Done] = {number: figures(1.0) for number in results}
    reports = [report_of(asked, tasks_of(asked), Outcome(some)) for some in (alike, results)]
    said = ["Beware" in rendered(*tables(report)) for report in reports]
    assert said == [False, True]


def test_weighted_random_always_runs() -> None:
    assert [contender.name for contender in parse_contenders(["argmin/rif, mnlb:nominal"])] == [
        "weighted-random",
        "argmin/rif",
        "mnlb:nominal",
    ]
    assert parse_contenders(list(DEFAULTS))[1:3] == (Contender("mnlb"), Contender("mnlb", "nominal"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("argmin/speed", "there is no cost 'speed'"),
        ("fast", "'fast' is not a policy"),
        ("argmin/rif:nominal", "only mnlb is told of capacity"),
        ("mnlb:half", "capacity is true or nominal"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_contenders([text])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipes": (Recipe(utilisation=1.5),)}, "utilisation 1.5"),
        ({"scenarios": 0}, "scenarios 0: at least 1"),
        ({"trials": 0}, "trials 0: at least 1"),
        ({"duration_s": 0.0}, "duration 0 s: must be above 0"),
        ({"duration_s": float("inf")}, "duration inf s"),
        ({"warm_up_s": -1.0}, "warm_up_s -1: must be a number from 0 on"),
        ({"interval_s": float("nan")}, "interval_s nan"),
        ({"seed": -1}, "seed -1"),
        ({"contenders": (Contender("argmin/rif"), Contender("argmin/rif"))}, "argmin/rif is asked for twice"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(DlbctlError) as caught:
        experiment(**changes).check()
    assert words in str(caught.value)


@pytest.mark.slow
def test_at_80_percent_of_unequal_hardware_gradient_flow_beats_weighted_random() -> None:
    """The gross order of the paper, on small networks: .93 of the mean and .87 of p90 with these seeds.

    Not in every one of them: shares swing where cells are so small and so near (docs/simulator.md). So the bounds are
    on the means over scenarios, half of what is gained.
    """
    asked = experiment(
        recipes=(Recipe(cells_max=4, servers_mean=5.0),),
        contenders=parse_contenders(["flow/gradient"]),
        scenarios=6,
        trials=1,
        duration_s=90.0,
        warm_up_s=60.0,
        seed=0,
    )
    flow = compare(asked, jobs=2, watch=lambda _: None).cases[0].standings[1]
    assert flow.mean is not None
    assert flow.p90 is not None
    assert flow.mean.mean < 0.965
    assert flow.p90.mean < 0.935
