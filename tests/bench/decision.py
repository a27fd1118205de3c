"""What a root's decision costs, by the number of its cells and of those that changed since the last one.

    python tests/bench/decision.py [--compiled] [--policies discrete/gradient,...] [--cells 2,20,200,1000,4000]

A decision is `Tier.arrived`: the estimate of the request, the costs of cells that changed, the choice, the counting.
Reports that make cells change, and rounds, happen between decisions and are not counted in; so is the request's end.
Figures are medians of decisions, in microseconds; compare within one run.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="discrete/rif,discrete/gradient,discrete/unified,flow/gradient")
    parser.add_argument("--cells", default="2,20,200,1000,4000")
    parser.add_argument("--changed", default="0,1,10,all", help="cells that report between two decisions")
    parser.add_argument("--decisions", type=int, default=400)
    parser.add_argument("--compiled", action="store_true", help="the package in build/compiled, as installed")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    sys.path.insert(0, str(ROOT / "build" / "compiled" if given.compiled else ROOT))
    print(f"{'policy':<22}{'cells':>7}" + "".join(f"{c + ' changed':>14}" for c in given.changed.split(",")))
    for policy in given.policies.split(","):
        for cells in map(int, given.cells.split(",")):
            row = [
                decision_us(policy, cells, min(cells, cells if changed == "all" else int(changed)), given.decisions)
                for changed in given.changed.split(",")
            ]
            print(f"{policy:<22}{cells:>7}" + "".join(f"{figure:>14.1f}" for figure in row), flush=True)


def decision_us(policy: str, cells: int, changed: int, decisions: int) -> float:
    """Median time of a decision [us] with so many cells that reported another load before it."""
    from random import Random

    from dlbctl.core.curve import Curve
    from dlbctl.core.events import Arrival, EndpointState, Forward, State
    from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
    from dlbctl.core.tier import Tier

    rng = Random(1)
    targets = tuple(TargetSettings(f"c{n}", (f"http://c{n}:1",)) for n in range(cells))
    tier = Tier(TierSettings("root", "here", targets, (EndpointSettings("m", policy),)), "b00t")
    received = [0] * cells
    curves = []
    for _ in range(cells):
        a, c = rng.uniform(0.4, 1.2), rng.uniform(4.0, 8.0)
        curves.append(Curve(a=a, b=0.7 * a / c, c=c, s=1.5, version=1, sd_log_gradient=0.1, samples=500.0))

    def report(now_s: float, number: int, *, first: bool = False) -> None:
        state = EndpointState(
            rif=rng.randrange(400, 800),
            k=100.0,
            received={"b00t": received[number]},
            curve_version=1,
            curve=curves[number] if first else None,
            prefill_s_per_token=0.0001,
        )
        line = State(endpoints={"m": state})
        tier.state_reported(now_s, f"c{number}", f"http://c{number}:1", line, 0.002 * (number % 80))

    for number in range(cells):
        report(0.0, number, first=True)
    now_s, due_s, times = 1.0, 0.0, []
    gc.collect()
    gc.disable()
    for _ in range(decisions):
        now_s += 0.001
        for number in rng.sample(range(cells), changed):
            report(now_s, number)
        if now_s >= due_s:
            due_s = tier.timer_fired(now_s).at_s
        arrival = Arrival("id", "m", prompt_bytes=4 * rng.randrange(200, 4000))
        begun = perf_counter()
        action = tier.arrived(now_s, arrival)
        times.append(perf_counter() - begun)
        assert isinstance(action, Forward)
        exchange = action.exchange
        assert exchange.candidate is not None
        received[int(exchange.candidate.name[1:])] += 1
        tier.attempt_started(now_s, exchange)
        tier.first_byte(now_s, exchange, 200)
        tier.ended(now_s, exchange, 200, None, 0.0)
    gc.enable()
    return 1e6 * median(times)


if __name__ == "__main__":
    main()
