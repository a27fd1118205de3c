"""How much worse policies get when curves are wrong: DLB's section 5.4. The same experiment, once for each noise."""

from __future__ import annotations

from msgspec import Struct

from dlbctl.sim.baseline import Case, Report, estimate_of, ratio
from dlbctl.sim.contender import RAND
from dlbctl.sim.statistics import Estimate

# The paper's, but for its own MNLB's second capacity, which curves do not touch.
POLICIES = (
    RAND,
    "mnlb",
    *(f"{mechanism}/{cost}" for mechanism in ("discrete", "flow") for cost in ("rif", "latency", "gradient")),
)
NOISES = (0.0, 0.1, 0.3, 0.5)


class Degradation(Struct, frozen=True):
    """A policy's mean latency with this noise over its own without, in the same scenarios with the same arrivals."""

    policy: str
    noise: float
    mean: Estimate | None


class NoiseReport(Struct, frozen=True):
    """An experiment whose recipes differ in their noise, the first of which has none."""

    report: Report
    degradations: list[Degradation]


def noise_report(report: Report) -> NoiseReport:
    """Set each noise against none, which is the report's first case."""
    exact = _means(report.cases[0])
    policies = [contender.name for contender in report.experiment.contenders]
    return NoiseReport(
        report,
        [
            Degradation(policy, case.recipe.noise, _degraded(policy, _means(case), exact))
            for policy in policies
            for case in report.cases
        ],
    )


def _means(case: Case) -> dict[tuple[str, int, int], float | None]:
    return {(row.policy, row.scenario, row.trial): row.figures.mean_s for row in case.trials}


def _degraded(
    policy: str, noisy: dict[tuple[str, int, int], float | None], exact: dict[tuple[str, int, int], float | None]
) -> Estimate | None:
    return estimate_of({key[1:]: ratio(mean_s, exact.get(key)) for key, mean_s in noisy.items() if key[0] == policy})
