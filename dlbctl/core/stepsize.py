"""The stepsize under which flow routing is certainly stable, whatever the shares.

Near an equilibrium the loop from loads to costs to shares and back to loads has on each arc the gain
η λ f' exp(-2 τ s) / (s (s + μ')). It is stable for η up to (π/2) / max_j (f_j'/μ_j') Σ_i λ_i (2 τ_ij + 1/μ_j'):
sufficient, and often a hundred times too careful (docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, pi


def safe_stepsize(cells: Iterable[tuple[float, float, list[tuple[float, float]]]]) -> float:
    """η [1/s² for costs in seconds]; infinite where nothing bounds it.

    Of each cell that is in use: f' by requests in flight, μ' [1/s], and λ_i with 2 τ_ij of each source that may use it.
    """
    worst = 0.0
    for steepness, drain_per_s, sources in cells:
        late = 0.0
        for rate_rps, round_trip_s in sources:
            late += rate_rps * (round_trip_s + 1.0 / drain_per_s)
        worst = max(worst, steepness / drain_per_s * late)
    return (pi / 2.0) / worst if worst > 0.0 else inf
