"""How long equilibria take to solve, what selfishness costs, and which stepsizes swing, on random networks.

python -m tests.bench.equilibria
"""

from __future__ import annotations

import statistics
import sys
import time
from math import inf

import numpy as np

from dlbctl.sim.equilibrium import COSTS, GRADIENT, LATENCY, RIF, Equilibrium, equilibrium
from dlbctl.sim.fluid import default_stepsizes
from dlbctl.sim.stability import Linearised
from tests.sim.networks import scattered

SEEDS = range(10)


def line(*columns: object) -> None:
    sys.stdout.write("| " + " | ".join(map(str, columns)) + " |\n")


def timed(cells: int, load: float) -> tuple[list[float], float]:
    """Seconds of each solve, and the worst residual."""
    took, worst = [], 0.0
    for seed in SEEDS:
        network = scattered(seed, cells=cells, load=load)
        for cost in COSTS.values():
            began = time.perf_counter()
            worst = max(worst, equilibrium(network, cost).residual)
            took.append(time.perf_counter() - began)
    return took, worst


def solving() -> None:
    line("cells", "load", "median, ms", "most, ms", "worst residual")
    for cells in (2, 4, 6, 10):
        for load in (0.8, 0.99):
            took, worst = timed(cells, load)
            line(cells, load, *(f"{1e3 * s:.0f}" for s in (statistics.median(took), max(took))), f"{worst:.0e}")


def median_and_range(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def over_optimum(load: float, speed: float) -> None:
    found = [
        {name: equilibrium(scattered(seed, load=load, speed=speed), cost) for name, cost in COSTS.items()}
        for seed in SEEDS
    ]

    def ratio(one: dict[str, Equilibrium], name: str) -> float:
        return one[name].mean_latency_s / one[GRADIENT.name].mean_latency_s

    figures = [median_and_range([ratio(one, cost.name) for one in found]) for cost in (LATENCY, RIF)]
    line(load, speed, *figures)


def swinging(load: float, speed: float) -> None:
    figures = []
    for cost in COSTS.values():
        onsets, ratios = [], []
        for seed in SEEDS:
            network = scattered(seed, load=load, speed=speed)
            found = equilibrium(network, cost)
            onsets.append(Linearised(network, found, default_stepsizes(network)).onset().factor)
            equal = Linearised(network, found, np.ones(len(network.sources)))
            ratios.append(equal.onset().factor / equal.safe_stepsize())
        finite = [ratio for ratio in ratios if ratio < inf]
        figures += [median_and_range(onsets), f"{statistics.median(finite):.3g}" if finite else "-"]
    line(load, speed, *figures)


def main() -> None:
    solving()
    line("load", "speed", "Wardrop over optimum", "RIF over optimum")
    for load in (0.3, 0.6, 0.8, 0.95):
        for speed in (1.0, 10.0):
            over_optimum(load, speed)
    line("load", "speed", *(f"{what} {name}" for name in COSTS for what in ("onset", "over safe,")))
    for load in (0.6, 0.7, 0.8, 0.9, 0.95):
        for speed in (1.0, 10.0):
            swinging(load, speed)


if __name__ == "__main__":
    main()
