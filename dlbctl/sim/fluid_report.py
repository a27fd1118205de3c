"""A run of the fluid model beside the equilibria of the three costs, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from dlbctl.core.errors import UsageError
from dlbctl.core.mechanisms.flow import KAPPA_PER_S
from dlbctl.core.mechanisms.flow_pi import KAPPA
from dlbctl.core.names import did_you_mean
from dlbctl.sim.equilibrium import COSTS, GRADIENT, LATENCY, Equilibrium, equilibrium
from dlbctl.sim.fluid import Rule, Trajectory, argmin, default_stepsizes, flow, flow_pi, integrate
from dlbctl.sim.network import Array, Network
from dlbctl.sim.stability import Linearised, Verdict, judge

MECHANISMS = ("flow", "flow-pi", "argmin")
# What the equilibrium of each cost is called where all three stand side by side.
NAMES = {"gradient": "optimum", "latency": "wardrop", "rif": "rif"}


@dataclass(frozen=True, slots=True)
class CellRow:
    """A cell in one state: `optimum`, `wardrop`, `rif`, or the run's policy, whose figures are means of its tail.

    utilisation: None for a link without a bound.
    """

    state: str
    cell: str
    flow_rps: float
    share: float
    utilisation: float | None
    in_flight: float
    load: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class StateRow:
    """Mean latency of all requests in one state, and over the optimum's: None of a run that has not come to a state."""

    state: str
    mean_latency_s: float
    over_optimum: float | None


@dataclass(frozen=True, slots=True)
class Steps:
    """Stepsizes by source [1/s² for costs in seconds], and what the linearised model says of them.

    onset: times so many they begin to swing, with `onset_period_s`; None if they never do. safe: up to which a stepsize
    is certainly stable; None if any is.
    """

    stepsizes: dict[str, float]
    safe: float | None
    onset: float | None
    onset_period_s: float | None


@dataclass(frozen=True, slots=True)
class FluidReport:
    """All that `dlbctl simulate fluid` says."""

    policy: str
    duration_s: float
    step_s: float
    demand_rps: float
    utilisation: float | None
    price_of_anarchy: float
    verdict: Verdict
    steps: Steps | None
    states: list[StateRow]
    cells: list[CellRow]


def parse_policy(text: str) -> tuple[str, str]:
    """A policy of the fluid model, `flow/gradient` for instance, as mechanism and cost."""
    mechanism, _, cost = text.partition("/")
    if mechanism not in MECHANISMS or cost not in COSTS:
        known = [f"{name}/{other}" for name in MECHANISMS for other in COSTS]
        hint = did_you_mean(text, known, otherwise=f"one of: {', '.join(known)}")
        raise UsageError(f"--policy: {text!r} has no fluid model", hint=hint)
    return mechanism, cost


def report(network: Network, policy: str, duration_s: float, stepsize: float | None) -> tuple[FluidReport, Trajectory]:
    """Solve, integrate and compare. stepsize: of all sources; by default each has that of the routers' rule."""
    mechanism, cost = parse_policy(policy)
    found = {name: equilibrium(network, one) for name, one in COSTS.items()}
    stepsizes = _stepsizes(network, mechanism, stepsize)
    rules: dict[str, Rule] = {"flow": flow(stepsizes), "flow-pi": flow_pi(stepsizes, COSTS[cost]), "argmin": argmin}
    run = integrate(network, COSTS[cost], rules[mechanism], duration_s)
    least_s = found[GRADIENT.name].mean_latency_s
    verdict = judge(network, found[cost], run)
    capacity = float(network.capacity_rps.sum())
    made = FluidReport(
        policy=policy,
        duration_s=duration_s,
        step_s=run.step_s,
        demand_rps=float(network.demand.sum()),
        utilisation=None if capacity == inf else float(network.demand.sum()) / capacity,
        price_of_anarchy=found[LATENCY.name].mean_latency_s / least_s,
        verdict=verdict,
        steps=_steps(network, found[cost], stepsizes) if mechanism == "flow" else None,
        states=list(_states(network, found, policy, run, lasting=verdict.lasting)),
        cells=[
            *(row for name, one in found.items() for row in _cells(network, NAMES[name], one.flow_rps, one.in_flight)),
            *_cells(network, policy, network.demand @ run.mean_shares, run.in_flight[run.tail].mean(axis=0)),
        ],
    )
    return made, run


def _stepsizes(network: Network, mechanism: str, stepsize: float | None) -> Array:
    if stepsize is not None:
        return np.full(len(network.sources), stepsize)
    return default_stepsizes(network, KAPPA if mechanism == "flow-pi" else KAPPA_PER_S)


def _states(
    network: Network, found: dict[str, Equilibrium], policy: str, run: Trajectory, *, lasting: bool
) -> Iterator[StateRow]:
    least_s = found[GRADIENT.name].mean_latency_s
    for name, one in found.items():
        yield StateRow(NAMES[name], one.mean_latency_s, one.mean_latency_s / least_s)
    mean_s = network.mean_latency_s(run.in_flight[run.tail].mean(axis=0), run.mean_shares)
    yield StateRow(policy, mean_s, mean_s / least_s if lasting else None)


def _cells(network: Network, state: str, flow_rps: Array, in_flight: Array) -> Iterator[CellRow]:
    for cell, rate, n in zip(network.cells, flow_rps.tolist(), in_flight.tolist(), strict=True):
        load = n / cell.servers
        yield CellRow(
            state=state,
            cell=cell.name,
            flow_rps=rate,
            share=rate / float(network.demand.sum()),
            utilisation=rate / cell.capacity_rps if cell.capacity_rps < inf else None,
            in_flight=n,
            load=load,
            latency_s=cell.service.latency_s(load),
        )


def _steps(network: Network, found: Equilibrium, stepsizes: Array) -> Steps:
    linear = Linearised(network, found, stepsizes)
    onset = linear.onset()
    swings, safe = onset.factor < inf, linear.safe_stepsize()
    return Steps(
        stepsizes=dict(zip(network.sources, stepsizes.tolist(), strict=True)),
        safe=safe if safe < inf else None,
        onset=onset.factor if swings else None,
        onset_period_s=onset.period_s if swings else None,
    )
