"""Policies side by side on the same scenarios and the same arrivals: DLB's Appendix B.

Owns which runs an experiment has, and how their figures are set against weighted-random's and the optimum's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isfinite
from typing import TypeAlias

from msgspec import Struct

from dlbctl.core.curve import Curve
from dlbctl.core.errors import UsageError
from dlbctl.sim.calibration import Sweep, curve_of, optimum_s, sweeps_of
from dlbctl.sim.contender import RAND, Contender
from dlbctl.sim.processes import Outcome, run_all
from dlbctl.sim.scenario import Recipe, Scenario, draw
from dlbctl.sim.statistics import Estimate, RunFigures, estimate
from dlbctl.sim.trial import Trial, run_trial
from dlbctl.sim.work import refuse_endless

MOST_PAIRS = 10_000
MOST_INTERVALS = 100_000
SHORTER = "a shorter --duration or --warm-up, fewer --scenarios, --trials or --policies, or a --y nearer to 1"

Task: TypeAlias = Trial | Sweep
Done: TypeAlias = RunFigures | Curve
# A scenario and a trial of it: the runs of all contenders that share their arrivals.
Pair: TypeAlias = tuple[int, int]


class Experiment(Struct, frozen=True):
    """What `dlbctl simulate baseline` was asked for: every contender in every trial of every scenario of each recipe.

    Requests count that arrive within duration_s after the warm-up. interval_s: length of the intervals of each run's
    series, 0 for none.
    """

    recipes: tuple[Recipe, ...]
    contenders: tuple[Contender, ...]
    scenarios: int
    trials: int
    duration_s: float
    warm_up_s: float
    seed: int = 0
    interval_s: float = 0.0
    optimum: bool = True

    def check(self) -> None:
        """Raise UsageError for what cannot be simulated, before anything is."""
        for recipe in self.recipes:
            recipe.check()
        for name in ("scenarios", "trials"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: at least 1 is needed")
        if not (isfinite(self.duration_s) and self.duration_s > 0):
            raise UsageError(f"duration {self.duration_s:g} s: must be above 0")
        for name in ("warm_up_s", "interval_s"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise UsageError(f"{name} {getattr(self, name):g}: must be a number from 0 on")
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: must not be negative")
        if self.scenarios * self.trials > MOST_PAIRS:
            raise UsageError(f"{self.scenarios} scenarios of {self.trials} trials: more than {MOST_PAIRS} in all")
        if self.interval_s and (self.warm_up_s + self.duration_s) / self.interval_s > MOST_INTERVALS:
            raise UsageError(
                f"interval_s {self.interval_s:g}: cuts the run into more than {MOST_INTERVALS} parts",
                hint="a longer --interval",
            )
        names = [contender.name for contender in self.contenders]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise UsageError(f"policy {name} is asked for twice")

    def scenarios_of(self, recipe: Recipe) -> list[Scenario]:
        """The scenarios of a recipe."""
        return [draw(recipe, self.seed, number) for number in range(self.scenarios)]


class TrialRow(Struct, frozen=True):
    """One run as it is kept."""

    scenario: int
    trial: int
    policy: str
    figures: RunFigures


class Standing(Struct, frozen=True):
    """How a contender did on average. Ratios are to weighted-random in the same scenario with the same arrivals.

    mean_s is not normalised: of scenarios as different as they are drawn. to_optimum: mean latency over the least that
    the fluid model allows (calibration.py); None where that is not known.
    """

    policy: str
    mean_s: Estimate | None
    mean: Estimate | None
    p90: Estimate | None
    p99: Estimate | None
    to_optimum: Estimate | None
    error_share: Estimate | None


class Case(Struct, frozen=True):
    """All of one recipe. optimum_s: least mean latency by scenario, None where the fluid model has no steady state."""

    recipe: Recipe
    standings: list[Standing]
    optimum_s: list[float | None]
    peak_utilisation: list[float]
    trials: list[TrialRow]


class Report(Struct, frozen=True):
    """An experiment's figures. `pairs`: how many scenario-trials are complete and count, of `pairs_asked`."""

    experiment: Experiment
    cases: list[Case]
    pairs: int
    pairs_asked: int

    @property
    def complete(self) -> bool:
        """Nothing was cut short."""
        return self.pairs == self.pairs_asked


class Step(Struct, frozen=True):
    """A task is done: requests simulated so far, of all; tasks likewise."""

    requests: float
    requests_asked: float
    tasks: int
    tasks_asked: int


def perform(task: Task) -> Done:
    """Do one task; what the processes run."""
    match task:
        case Trial():
            return run_trial(task)
        case Sweep():
            return curve_of(task)


def compare(experiment: Experiment, *, jobs: int, watch: Callable[[Step], None]) -> Report:
    """Run an experiment in `jobs` processes. Ctrl-C ends it with a report of what is complete.

    UsageError for what cannot be simulated. `watch` hears once of what there is to do, and then of each task done.
    """
    experiment.check()
    tasks = tasks_of(experiment)
    asked = sum(task.requests for task in tasks)
    refuse_endless(sum(task.steps for task in tasks if isinstance(task, Trial)), hint=SHORTER)
    finished: list[Task] = []

    def tell() -> None:
        watch(Step(sum(task.requests for task in finished), asked, len(finished), len(tasks)))

    def done(number: int) -> None:
        finished.append(tasks[number])
        tell()

    outcome: Outcome[Done] = run_all(perform, tasks, jobs=min(jobs, len(tasks)), begun=tell, done=done)
    return report_of(experiment, tasks, outcome)


def tasks_of(experiment: Experiment) -> list[Task]:
    """All there is to do, scenario by scenario: what is done at any time is complete for the first of them."""
    tasks: dict[Task, None] = {}
    for recipe in experiment.recipes:
        for scenario in experiment.scenarios_of(recipe):
            if experiment.optimum:
                tasks |= dict.fromkeys(sweeps_of(scenario, experiment.seed))
            tasks |= dict.fromkeys(_trials(experiment, scenario))
    return list(tasks)


def _trials(experiment: Experiment, scenario: Scenario) -> Iterator[Trial]:
    for trial, contender in product(range(experiment.trials), experiment.contenders):
        yield Trial(
            scenario,
            contender,
            trial=trial,
            seed=experiment.seed,
            duration_s=experiment.duration_s,
            warm_up_s=experiment.warm_up_s,
            interval_s=experiment.interval_s,
        )


def report_of(experiment: Experiment, tasks: Sequence[Task], outcome: Outcome[Done]) -> Report:
    """What is done of the tasks, summed up."""
    curves: dict[Sweep, Curve] = {}
    rows: dict[Recipe, list[TrialRow]] = {recipe: [] for recipe in experiment.recipes}
    for number, task in enumerate(tasks):
        result = outcome.results.get(number)
        if isinstance(task, Sweep) and isinstance(result, Curve):
            curves[task] = result
        if isinstance(task, Trial) and isinstance(result, RunFigures):
            rows[task.scenario.recipe].append(TrialRow(task.scenario.number, task.trial, task.contender.name, result))
    cases = [_case(experiment, recipe, rows[recipe], curves) for recipe in experiment.recipes]
    contenders = len(experiment.contenders)
    return Report(
        experiment=experiment,
        cases=cases,
        pairs=sum(len(case.trials) for case in cases) // contenders,
        pairs_asked=len(experiment.recipes) * experiment.scenarios * experiment.trials,
    )


def _case(experiment: Experiment, recipe: Recipe, rows: list[TrialRow], curves: dict[Sweep, Curve]) -> Case:
    rows = _complete(rows, len(experiment.contenders))
    scenarios = experiment.scenarios_of(recipe)
    least = [optimum_s(scenario, experiment.seed, curves) if experiment.optimum else None for scenario in scenarios]
    return Case(
        recipe=recipe,
        standings=[_standing(contender.name, rows, least) for contender in experiment.contenders],
        optimum_s=least,
        peak_utilisation=[max(map(scenario.utilisation, scenario.phases)) for scenario in scenarios],
        trials=rows,
    )


def _complete(rows: list[TrialRow], contenders: int) -> list[TrialRow]:
    """Only what every contender has run: else they would be compared on different scenarios."""
    by_pair: dict[Pair, int] = {}
    for row in rows:
        by_pair[row.scenario, row.trial] = by_pair.get((row.scenario, row.trial), 0) + 1
    return [row for row in rows if by_pair[row.scenario, row.trial] == contenders]


def _standing(policy: str, rows: list[TrialRow], least: list[float | None]) -> Standing:
    mine = {(row.scenario, row.trial): row.figures for row in rows if row.policy == policy}
    rand = {(row.scenario, row.trial): row.figures for row in rows if row.policy == RAND}

    def over_rand(figure: str) -> Estimate | None:
        own, base = ({pair: getattr(run, figure) for pair, run in runs.items()} for runs in (mine, rand))
        return estimate_of({pair: ratio(value, base[pair]) for pair, value in own.items()})

    return Standing(
        policy=policy,
        mean_s=estimate_of({pair: figures.mean_s for pair, figures in mine.items()}),
        mean=over_rand("mean_s"),
        p90=over_rand("p90_s"),
        p99=over_rand("p99_s"),
        to_optimum=estimate_of({pair: ratio(figures.mean_s, least[pair[0]]) for pair, figures in mine.items()}),
        error_share=estimate_of({pair: figures.error_share for pair, figures in mine.items()}),
    )


def ratio(value: float | None, base: float | None) -> float | None:
    """One over the other, where both are known."""
    return None if value is None or base is None else value / base


def estimate_of(values: dict[Pair, float | None]) -> Estimate | None:
    """Mean and interval of what is known of pairs; None when nothing is."""
    groups: dict[int, list[float]] = {}
    for (scenario, _), value in sorted(values.items()):
        if value is not None:
            groups.setdefault(scenario, []).append(value)
    return estimate(groups)
