"""Networks of cells drawn at random, as the experiments of DLB's Appendix B draw them.

Owns every value of those experiments (`Recipe`): what the paper gives is marked [DLB], the rest is ours. A draw is a
function of recipe, seed and number. Each kind of thing has a stream of chance of its own, so recipes that differ in
one value (utilisation, y, a burst) get the same cells in the same places, and can be compared pair by pair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from math import isfinite, log, sqrt
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from dlbctl.core.errors import UsageError
from dlbctl.fleet.regions import cloud_regions, one_way_ms
from dlbctl.sim.plan import DisaggregatedPlan

if TYPE_CHECKING:
    import numpy as np

Disturbance = Literal["none", "burst", "outage"]


_ABOVE_ZERO = frozenset(
    {
        "servers_mean", "decode_engines", "decode_slots", "prefill_s", "decode_s", "server_limit", "prompt_shape",
        "prompt_scale", "output_shape", "output_scale", "y", "probe_interval_s",
    }
)  # fmt: skip


# What a cell's latency curve depends on, beside its own token times.
HARDWARE = (
    "decode_engines", "decode_slots", "server_limit", "prompt_min", "prompt_shape", "prompt_scale", "output_min",
    "output_shape", "output_scale",
)  # fmt: skip


class Purpose(IntEnum):
    """What a stream of chance is for. The numbers are part of every seed: they never change."""

    PLACES = 0
    SERVERS = 1
    TOKEN_TIMES = 2
    DEMAND = 3
    DISTURBANCE = 4
    CURVE_NOISE = 5
    ARRIVALS = 6
    WORLD = 7
    CALIBRATION = 8


def seed_words(seed: int, scenario: int, trial: int, purpose: Purpose) -> np.random.SeedSequence:
    """The seed of one stream; others' never overlap with it, and it is the same on every machine."""
    import numpy as np

    return np.random.SeedSequence(seed, spawn_key=(scenario, trial, int(purpose)))


def seed_of(seed: int, scenario: int, trial: int, purpose: Purpose) -> int:
    """The same as one number of 64 bits, for `random.Random`."""
    import numpy as np

    return int(seed_words(seed, scenario, trial, purpose).generate_state(1, np.uint64)[0])


class Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    """How scenarios are drawn. `check` raises UsageError for what nobody could simulate."""

    # The network.
    cells_min: Annotated[int, Meta(description="Fewest cells [DLB].")] = 2
    cells_max: Annotated[int, Meta(description="Most cells [DLB].")] = 10
    servers_mean: Annotated[float, Meta(description="Mean of the Poisson number of servers of a cell [DLB].")] = 10.0

    # A server: one prefill engine, then decode engines with slots [DLB].
    decode_engines: Annotated[int, Meta(description="Decode engines of a server [DLB].")] = 2
    decode_slots: Annotated[int, Meta(description="Requests that a decode engine works on at once [DLB].")] = 4
    prefill_s: Annotated[float, Meta(description="Seconds per prompt token, mean over cells.")] = 0.08e-3
    decode_s: Annotated[float, Meta(description="Seconds per output token, mean over cells.")] = 7e-3
    token_time_sd: Annotated[
        float, Meta(description="SD over cells of both token times, as a share of their mean; 0: equal hardware [DLB].")
    ] = 0.2
    server_limit: Annotated[int, Meta(description="Requests in flight a server takes; one more is an error.")] = 48

    # A request: shifted gamma numbers of tokens [DLB].
    prompt_min: Annotated[int, Meta(description="Fewest prompt tokens.")] = 128
    prompt_shape: Annotated[float, Meta(description="Shape of the gamma part of prompts.")] = 1.5
    prompt_scale: Annotated[float, Meta(description="Scale [tokens] of the gamma part of prompts.")] = 600.0
    output_min: Annotated[int, Meta(description="Fewest output tokens.")] = 16
    output_shape: Annotated[float, Meta(description="Shape of the gamma part of outputs.")] = 2.0
    output_scale: Annotated[float, Meta(description="Scale [tokens] of the gamma part of outputs.")] = 45.0

    # The load.
    utilisation: Annotated[float, Meta(description="Demand over capacity, of the whole system [DLB].")] = 0.8
    y: Annotated[float, Meta(description="Token times are divided, rates multiplied by this [DLB].")] = 1.0
    disturbance: Annotated[Disturbance, Meta(description="What happens in the midst of a run [DLB].")] = "none"
    disturbed_utilisation: Annotated[float, Meta(description="Utilisation while it does [DLB].")] = 0.95
    disturbed_from: Annotated[float, Meta(description="When it begins, as a share of the measured time [DLB].")] = 0.3
    disturbed_until: Annotated[float, Meta(description="When it ends, as a share of the measured time [DLB].")] = 0.7

    # What routers believe.
    noise: Annotated[
        float, Meta(description="eps: a cell's curve parameters are multiplied by 1 + eps xi, xi ~ U[-1, 1] [DLB].")
    ] = 0.0
    probe_interval_s: Annotated[float, Meta(description="Between two probes of a cell by a root.")] = 0.01

    @property
    def prompt_mean(self) -> float:
        """Mean prompt tokens of a request."""
        return self.prompt_min + self.prompt_shape * self.prompt_scale

    @property
    def output_mean(self) -> float:
        """Mean output tokens of a request."""
        return self.output_min + self.output_shape * self.output_scale

    def server(self, prefill_s: float, decode_s: float) -> DisaggregatedPlan:
        """A server with these token times [s]."""
        return DisaggregatedPlan(prefill_s, decode_s, self.decode_engines, self.decode_slots)

    def capacity(self, prefill_s: float, decode_s: float) -> float:
        """Requests/s that such a server can bear."""
        return self.server(prefill_s, decode_s).capacity_rps(self.prompt_mean, self.output_mean)

    def check(self) -> None:
        """Raise UsageError, naming the value, for what cannot be drawn or simulated."""
        if not 1 <= self.cells_min <= self.cells_max:
            raise UsageError(
                f"no scenario has between {self.cells_min} and {self.cells_max} cells",
                hint="cells_min is at least 1, and cells_max at least cells_min",
            )
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "disturbance":
                continue
            if not (isfinite(value) and value >= 0) or (value == 0 and name in _ABOVE_ZERO):
                raise UsageError(
                    f"{name} {value:g}: must be a number {'above 0' if name in _ABOVE_ZERO else 'from 0 on'}"
                )
        self._check_demand()
        if self.noise >= 1:
            raise UsageError(f"noise {self.noise:g}: must be below 1", hint="at 1 a cell's latency may be taken for 0")

    def _check_demand(self) -> None:
        if not 0 < self.utilisation < 1:
            raise UsageError(
                f"utilisation {self.utilisation:g}: must be above 0 and below 1",
                hint="demand at capacity or above it has no steady state to measure",
            )
        if self.disturbance == "none":
            return
        if not self.utilisation < self.disturbed_utilisation < 1:
            raise UsageError(
                f"disturbed_utilisation {self.disturbed_utilisation:g}: must be above the utilisation of"
                f" {self.utilisation:g}, and below 1",
                hint=f"a {self.disturbance} raises the utilisation",
            )
        if not 0 <= self.disturbed_from < self.disturbed_until <= 1:
            raise UsageError(f"a {self.disturbance} must begin before it ends, within the run")


@dataclass(frozen=True, slots=True)
class Site:
    """One cell as drawn: where it is, what it has, and what is asked for there.

    Rates are requests/s. curve_factor: what its learned curves are multiplied by.
    """

    name: str
    region: str
    servers: int
    prefill_s: float
    decode_s: float
    server_capacity: float
    demand: float
    curve_factor: float = 1.0

    @property
    def capacity(self) -> float:
        """Requests/s that the cell can bear."""
        return self.servers * self.server_capacity


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run, from a share of its measured time on: demand [requests/s] and servers, cell by cell."""

    begins: float
    demand: tuple[float, ...]
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Cells with their demand. `phases`: one, or three where something disturbs the run."""

    number: int
    recipe: Recipe
    sites: tuple[Site, ...]
    phases: tuple[Phase, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The cells' names; each is a source of requests too."""
        return tuple(site.name for site in self.sites)

    @property
    def nominal_capacity(self) -> float:
        """Requests/s of a server as one would have it who does not know how cells differ."""
        recipe = self.recipe
        return recipe.capacity(recipe.prefill_s / recipe.y, recipe.decode_s / recipe.y)

    def utilisation(self, phase: Phase) -> float:
        """Demand over capacity in a phase."""
        each = zip(self.sites, phase.servers, strict=True)
        return sum(phase.demand) / sum(site.server_capacity * servers for site, servers in each)

    def one_way_s(self) -> dict[tuple[str, str], float]:
        """Network latency from each source to each cell."""
        delays: dict[tuple[str, str], float] = {}
        for source in self.sites:
            for site in self.sites:
                ms = one_way_ms(source.region, site.region)
                assert ms is not None
                # A root stands beside its own cell's leaf, but not inside it: the table's least holds for both.
                delays[source.name, site.name] = ms / 1e3
        return delays


def draw(recipe: Recipe, seed: int, number: int) -> Scenario:
    """Scenario `number` of a recipe. UsageError for a recipe that cannot be."""
    import numpy as np

    recipe.check()

    def chance(purpose: Purpose) -> np.random.Generator:
        return np.random.default_rng(seed_words(seed, number, 0, purpose))

    regions = _places(recipe, chance(Purpose.PLACES))
    cells = len(regions)
    servers = np.maximum(chance(Purpose.SERVERS).poisson(recipe.servers_mean, cells), 1)
    prefill, decode = _token_times(recipe, cells, chance(Purpose.TOKEN_TIMES))
    capacity = [recipe.capacity(p, d) for p, d in zip(prefill, decode, strict=True)]
    total = recipe.utilisation * sum(k * mu for k, mu in zip(servers.tolist(), capacity, strict=True))
    demand = total * chance(Purpose.DEMAND).dirichlet(np.ones(cells))
    factors = 1.0 + recipe.noise * chance(Purpose.CURVE_NOISE).uniform(-1.0, 1.0, cells)
    columns = (_names(regions), regions, servers.tolist(), prefill, decode, capacity, demand.tolist(), factors.tolist())
    sites = tuple(Site(*row) for row in zip(*columns, strict=True))
    return Scenario(number, recipe, sites, _phases(recipe, sites, chance(Purpose.DISTURBANCE)))


def _places(recipe: Recipe, chance: np.random.Generator) -> list[str]:
    """The regions of the cells, each in one of a few regions, so that cells share regions as data centres do [DLB]."""
    cells = int(chance.integers(recipe.cells_min, recipe.cells_max, endpoint=True))
    known = cloud_regions()
    count = int(chance.integers(1, min(cells, len(known)), endpoint=True))
    chosen = [known[index] for index in chance.choice(len(known), count, replace=False)]
    rest = [chosen[index] for index in chance.integers(0, count, cells - count)]
    return sorted(chosen + rest)


def _names(regions: list[str]) -> list[str]:
    """`us-east-1/1`, `us-east-1/2`: which cell of its region."""
    return [f"{region}/{regions[: index + 1].count(region)}" for index, region in enumerate(regions)]


def _token_times(recipe: Recipe, cells: int, chance: np.random.Generator) -> tuple[list[float], list[float]]:
    """Seconds per token of each cell in each stage: log-normal, with the recipe's mean and SD."""
    import numpy as np

    variance = log(1.0 + recipe.token_time_sd**2)
    spread = np.exp(sqrt(variance) * chance.standard_normal((2, cells)) - 0.5 * variance)
    prefill, decode = spread * np.array([[recipe.prefill_s], [recipe.decode_s]]) / recipe.y
    return prefill.tolist(), decode.tolist()


def _phases(recipe: Recipe, sites: tuple[Site, ...], chance: np.random.Generator) -> tuple[Phase, ...]:
    demand = tuple(site.demand for site in sites)
    servers = tuple(site.servers for site in sites)
    usual = Phase(0.0, demand, servers)
    if recipe.disturbance == "none":
        return (usual,)
    if recipe.disturbance == "burst":
        demand = _burst(recipe, sites, int(chance.integers(len(sites))))
    else:
        servers = _outage(recipe, sites, chance.permutation(len(sites)).tolist())
    disturbed = Phase(recipe.disturbed_from, demand, servers)
    return (usual, disturbed, replace(usual, begins=recipe.disturbed_until))


def _burst(recipe: Recipe, sites: tuple[Site, ...], where: int) -> tuple[float, ...]:
    """One cell's demand raised until the system is at the disturbed utilisation [DLB]."""
    missing = recipe.disturbed_utilisation * sum(site.capacity for site in sites) - sum(site.demand for site in sites)
    return tuple(site.demand + (missing if index == where else 0.0) for index, site in enumerate(sites))


def _outage(recipe: Recipe, sites: tuple[Site, ...], order: list[int]) -> tuple[int, ...]:
    """Cells cut to one server in turn, until the system is over the disturbed utilisation [DLB]. It may be over 1."""
    servers = [site.servers for site in sites]
    demand = sum(site.demand for site in sites)
    for index in order:
        capacity = sum(site.server_capacity * k for site, k in zip(sites, servers, strict=True))
        if demand > recipe.disturbed_utilisation * capacity:
            break
        servers[index] = 1
    return tuple(servers)
