"""How many requests a second one core simulates: the paper's baseline, policies in turn, compiled and interpreted.

python tests/bench/simulator.py [--rounds 3] [--seconds 60]

Counted is processor time, of worlds that are made already. Scenario 0 of seed 1 is drawn as `dlbctl simulate baseline`
draws it; its requests are some 500 a second at y = 1, over which each root hears each cell 100 times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
POLICIES = ("flow/gradient", "discrete/gradient", "weighted-random")
SPEEDS = (1.0, 10.0)
RUN = """
import json, sys, time
from dlbctl import is_compiled
from dlbctl.sim.contender import Contender
from dlbctl.sim.measurement import Measurement
from dlbctl.sim.scenario import Recipe, draw
from dlbctl.sim import trial
from dlbctl.sim.world import World

policy, y, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
run = trial.Trial(draw(Recipe(y=y), 1, 0), Contender.parse(policy, option="policy"), 0, 1, seconds, 0.0)
measured = Measurement(run.scenario.names, from_s=0.0, until_s=seconds)
world = World(trial.world_plan(run), trial.arrivals(run), measured)
began = time.process_time()
world.run(seconds)
took_s = time.process_time() - began
figures = measured.figures(unfinished=world.in_flight)
print(json.dumps([figures.requests / took_s, len(run.scenario.sites), figures.requests / seconds, is_compiled()]))
"""


def measured(package: Path, policy: str, y: float, seconds: float) -> tuple[float, int, float, bool]:
    """Simulated requests per second of processor time; cells; requests per simulated second; whether compiled."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-c", RUN, policy, str(y), str(seconds)]
    done = subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True, check=True)
    per_s, cells, rate, compiled = json.loads(done.stdout)
    return per_s, cells, rate, compiled


def main() -> None:
    """Print a line for each policy and speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    import compiled

    packages = {"compiled": compiled.package(), "interpreted": PROJECT}
    found: dict[tuple[str, float, str], list[float]] = {}
    for _ in range(asked.rounds):
        for y in SPEEDS:
            for policy in POLICIES:
                for kind, package in packages.items():
                    per_s, cells, rate, is_compiled = measured(package, policy, y, asked.seconds / y)
                    assert is_compiled == (kind == "compiled")
                    found.setdefault((policy, y, kind), []).append(per_s)
        sys.stderr.write(f"{cells} cells, {rate:.0f} requests a simulated second at y = {y:g}\n")
    for (policy, y, kind), rates in found.items():
        text = f"{policy:20} y = {y:<4g} {kind:12} {statistics.median(rates):8.0f} requests/s"
        sys.stdout.write(f"{text}  ({min(rates):.0f} to {max(rates):.0f})\n")


if __name__ == "__main__":
    main()
