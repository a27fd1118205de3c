"""What a hop costs: dlbctl beside nginx and the Rust routers of sglang and vLLM, on this machine.

    python tests/bench/hop.py [--rounds 3] [--requests 6000] [--only direct,nginx] [--interpreted] [--json FILE]

dlbctl is measured compiled, as users install it; --interpreted measures the sources as they are.
Clients and upstream run on one core, the systems under test on another. The systems take turns, round after
round, so that a disturbance meets all of them; trust the ratios, not the absolute figures. Exit 1 when an
answer was wrong or a bar is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import compiled
from hopbench import report
from hopbench.environments import DEFAULT_FOLDER, UnavailableError
from hopbench.load import WrongAnswerError
from hopbench.measure import CONNECTIONS, Amounts, Figures, Running
from hopbench.processes import Cores, Group, StartError
from hopbench.systems import DLBCTL, SYSTEMS, Site, System

_BENCH = Path(__file__).parent


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=Amounts().loaded, help="JSON requests a round")
    parser.add_argument("--only", default=",".join(names), help=f"of {','.join(names)}")
    parser.add_argument("--interpreted", action="store_true", help="dlbctl from its sources, not compiled")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures")
    parser.add_argument("--envs", type=Path, default=DEFAULT_FOLDER, help="where the peers' environments are kept")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    unknown = set(arguments.only) - set(names)
    if unknown:
        parser.error(f"--only: no such system: {', '.join(sorted(unknown))}")
    if arguments.rounds < 1 or arguments.requests < CONNECTIONS:
        parser.error(f"at least one round of {CONNECTIONS} requests")
    return arguments


@contextmanager
def _upstreams(cores: Cores, folder: Path) -> Iterator[tuple[int, ...]]:
    """The upstream process; its ports."""
    group = Group(cores.clients, folder)
    try:
        command = [sys.executable, "-m", "hopbench.upstream"]
        launched = group.launch(command, name="upstream", env={"PYTHONPATH": str(_BENCH)})
        yield tuple(int(port) for port in launched.wait_for("upstreams"))
    finally:
        group.stop()


@contextmanager
def _running(system: System, site: Site) -> Iterator[Running]:
    try:
        running = Running(system.name, system.start(site), site.group)
        running.wait_until_ready()
        yield running
    finally:
        site.group.stop()


def _warn_of_load() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(f"note: load average {load:.1f} on {cores} cores: figures and ratios will vary", file=sys.stderr)


def _measure(arguments: argparse.Namespace, folder: Path) -> dict[str, list[Figures]]:
    """Start what can be started, then let everything take turns; figures by system."""
    cores = Cores.of_this_machine()
    os.sched_setaffinity(0, cores.clients)
    amounts = Amounts(loaded=arguments.requests)
    _warn_of_load()
    package = compiled.PROJECT
    if DLBCTL.intersection(arguments.only) and not arguments.interpreted:
        package = compiled.package()
    with ExitStack() as stack:
        upstreams = stack.enter_context(_upstreams(cores, folder))
        started: list[Running] = []
        for system in (system for system in SYSTEMS if system.name in arguments.only):
            home = folder / system.name
            home.mkdir()
            site = Site(Group(cores.systems, home), home, upstreams, package, arguments.envs)
            try:
                started.append(stack.enter_context(_running(system, site)))
            except UnavailableError as error:
                print(f"skipped {system.name}: {error}", file=sys.stderr)
        figures: dict[str, list[Figures]] = {running.name: [] for running in started}
        for number in range(arguments.rounds):
            for running in started:
                print(f"round {number + 1}: {running.name}", file=sys.stderr)
                figures[running.name].append(running.figures(amounts))
        return figures


def _write_json(path: Path, rounds: report.Rounds, bars: list[report.Bar]) -> None:
    document = {
        "rounds": {name: [dataclasses.asdict(figures) for figures in row] for name, row in rounds.items()},
        "bars": [dataclasses.asdict(bar) | {"missed": bar.missed} for bar in bars],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    """Measure, print, judge."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="dlbctl-bench-") as folder:
        try:
            rounds = _measure(arguments, Path(folder))
        except (compiled.BuildError, StartError, WrongAnswerError, TimeoutError) as error:
            print(f"FAILED: {error!r}" if not str(error) else f"FAILED: {error}", file=sys.stderr)
            return 1
    bars = report.bars(rounds)
    print(report.table(rounds), report.ratios(rounds), "\n".join(map(str, bars)), sep="\n\n")
    if arguments.json:
        _write_json(arguments.json, rounds, bars)
    return 1 if any(bar.missed for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
