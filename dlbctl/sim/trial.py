"""One run: a contender on a scenario, with the arrivals of one trial.

Owns how a scenario becomes a world. All contenders of a trial meet the same requests at the same instants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from random import Random

from dlbctl.core.settings import FlowSettings
from dlbctl.sim.arrivals import Request, Sizes, varying
from dlbctl.sim.contender import Contender
from dlbctl.sim.measurement import Measurement
from dlbctl.sim.plan import CellPlan, ServerPlan, WorldPlan
from dlbctl.sim.scenario import Purpose, Recipe, Scenario, Site, seed_of
from dlbctl.sim.statistics import RunFigures
from dlbctl.sim.work import steps_of
from dlbctl.sim.world import World

# After the last arrival, what is open has the time that a full server takes to work it off, this many times.
_DRAIN = 4.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A run to be. Requests count that arrive within duration_s after the warm-up."""

    scenario: Scenario
    contender: Contender
    trial: int
    seed: int
    duration_s: float
    warm_up_s: float
    interval_s: float = 0.0

    @property
    def until_s(self) -> float:
        """When the last request has arrived."""
        return self.warm_up_s + self.duration_s

    @property
    def requests(self) -> float:
        """How many there will be, about."""
        return sum(self.scenario.phases[0].demand) * self.until_s

    @property
    def ends_s(self) -> float:
        """When it is given up at the latest."""
        recipe, sites = self.scenario.recipe, self.scenario.sites
        return self.until_s + _DRAIN * max(recipe.server_limit / site.server_capacity for site in sites)

    @property
    def steps(self) -> float:
        """How much work it is at most."""
        sites = self.scenario.sites
        return steps_of(
            rounds=self.ends_s / self.scenario.recipe.probe_interval_s,
            sources=len(sites),
            cells=len(sites),
            servers=sum(site.servers for site in sites),
            requests=self.requests,
        )


def run_trial(trial: Trial) -> RunFigures:
    """Simulate it."""
    scenario = trial.scenario
    measurement = Measurement(
        scenario.names, from_s=trial.warm_up_s, until_s=trial.until_s, interval_s=trial.interval_s
    )
    world = World(world_plan(trial), arrivals(trial), measurement)
    _plan_changes(world, trial)
    world.finish(trial.ends_s)
    return measurement.figures(unfinished=world.in_flight)


def world_plan(trial: Trial) -> WorldPlan:
    """The scenario as a world routed by the contender."""
    scenario = trial.scenario
    return WorldPlan(
        cells=tuple(_cell(trial, site) for site in scenario.sites),
        sources=scenario.names,
        one_way_s=scenario.one_way_s(),
        policy=trial.contender.policy,
        flow=FlowSettings(stepsize=trial.contender.stepsize),
        probe_interval_s=scenario.recipe.probe_interval_s,
        seed=seed_of(trial.seed, scenario.number, trial.trial, Purpose.WORLD),
    )


def sizes(recipe: Recipe) -> Sizes:
    """Draws a request's prompt and output tokens."""

    def drawn(rng: Random) -> tuple[int, int]:
        prompt = rng.gammavariate(recipe.prompt_shape, recipe.prompt_scale)
        output = rng.gammavariate(recipe.output_shape, recipe.output_scale)
        # Whole tokens whose mean is the recipe's.
        return recipe.prompt_min + round(prompt), recipe.output_min + round(output)

    return drawn


def _cell(trial: Trial, site: Site) -> CellPlan:
    recipe = trial.scenario.recipe
    told = site.server_capacity if trial.contender.capacity == "true" else trial.scenario.nominal_capacity
    return CellPlan(
        site.name,
        servers=(recipe.server(site.prefill_s, site.decode_s),) * site.servers,
        slots=recipe.server_limit,
        capacity_rps=told,
        curve_factor=site.curve_factor,
    )


def arrivals(trial: Trial) -> Iterator[Request]:
    """The requests of the trial, the same for every contender."""
    scenario = trial.scenario
    rng = Random(seed_of(trial.seed, scenario.number, trial.trial, Purpose.ARRIVALS))  # noqa: S311 - no secret
    phases = [(trial.warm_up_s + phase.begins * trial.duration_s, phase.demand) for phase in scenario.phases[1:]]
    stream = varying(rng, [(0.0, scenario.phases[0].demand), *phases], sizes(scenario.recipe))
    return takewhile(lambda request: request.at_s < trial.until_s, stream)


def _plan_changes(world: World, trial: Trial) -> None:
    """Have the servers come and go that the scenario's phases differ in."""
    scenario = trial.scenario
    for before, phase in pairwise(scenario.phases):
        at_s = trial.warm_up_s + phase.begins * trial.duration_s
        for number, site in enumerate(scenario.sites):
            if before.servers[number] != phase.servers[number]:
                server = scenario.recipe.server(site.prefill_s, site.decode_s)
                world.at(at_s, _resized(number, (server,) * phase.servers[number]))


def _resized(cell: int, servers: tuple[ServerPlan, ...]) -> Callable[[World], None]:
    return lambda world: world.resize(cell, servers)
