"""A fleet that is to be simulated: its world, whose clients are where, and what had to be assumed of it.

Owns what the user may say of a fleet beside its files, and how names that do not exist are answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dlbctl.core.errors import UsageError
from dlbctl.core.names import did_you_mean
from dlbctl.engine.profile import Profile, load_profile
from dlbctl.fleet.regions import WITHIN_REGION_MS, known_regions, one_way_ms
from dlbctl.sim.plan import BatchingPlan, ServerPlan, WorldPlan

DEFAULT_PROFILE = "l40s"
# What `dlbctl engine` lets wait.
QUEUE_LIMIT = 256


@dataclass(frozen=True, slots=True)
class CellSize:
    """So many servers, engines of a profile; empty: the profile of all the others."""

    servers: int
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What the user says of a fleet where its file does not. None, empty: nothing.

    cells: by name. one_way_s: network delays by (source, cell), by ("", cell) from every source. weights: of the
    clients at each source. endpoint: the model name to simulate.
    """

    profile: str | None = None
    time_factor: float | None = None
    cells: Mapping[str, CellSize] = field(default_factory=dict)
    one_way_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated. weights: of the clients at each of the plan's sources. assumed: sentences.

    sizes_matter: servers look at how long a request is, so that time to first token means something.
    """

    plan: WorldPlan
    weights: tuple[float, ...]
    assumed: tuple[str, ...]
    sizes_matter: bool = True

    @property
    def profiles(self) -> list[Profile]:
        """Every profile of an engine in it, once."""
        plans = [server for cell in self.plan.cells for server in cell.servers]
        return list({plan.profile.name: plan.profile for plan in plans if isinstance(plan, BatchingPlan)}.values())


def engines(size: CellSize, told: Told, *, weights: Iterable[float] = ()) -> tuple[ServerPlan, ...]:
    """A cell's servers as engines. weights: of each; one that counts for two is twice as fast."""
    profile = load_profile(size.profile or told.profile or DEFAULT_PROFILE)
    factor = told.time_factor or 1.0
    weights = list(weights) or [1.0] * size.servers
    return tuple(BatchingPlan(profile, factor * weight, weight, QUEUE_LIMIT) for weight in weights)


class Delays:
    """One-way delays: what the user says, else what was measured, else the table of cloud regions.

    UsageError for one that nobody knows. assumed: says what is from the table.
    """

    def __init__(
        self,
        told: Told,
        sources: Iterable[str],
        cells: Iterable[str],
        measured_s: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self._told = told
        self._measured_s = measured_s or {}
        self._of_table: dict[str, list[str]] = {}
        self.one_way_s = {(source, cell): self._between(source, cell) for source in sources for cell in cells}

    @property
    def assumed(self) -> list[str]:
        """What came from the table, a sentence for each source."""
        return [
            f"one-way delays from {source}: {', '.join(some)} (table of cloud regions; --one-way)"
            for source, some in self._of_table.items()
        ]

    def _between(self, source: str, cell: str) -> float:
        told = self._told.one_way_s
        known_s = told.get((source, cell), told.get(("", cell), self._measured_s.get((source, cell))))
        if known_s is not None:
            return known_s
        known_ms = WITHIN_REGION_MS if source == cell else one_way_ms(source, cell)
        if known_ms is None:
            raise UsageError(
                f"the network delay from {source} to {cell} is not known",
                hint=f"--one-way {cell}=MS says it; names of the built-in table are {', '.join(known_regions())}",
            )
        self._of_table.setdefault(source, []).append(f"{cell} {known_ms:g} ms")
        return known_ms / 1e3


def check_one_way(told: Told, plan: WorldPlan, added: Iterable[str]) -> None:
    """UsageError for a delay from or to what there is not, cells that are added included."""
    cells = [*(cell.name for cell in plan.cells), *added]
    for source, cell in told.one_way_s:
        if source:
            require(source, plan.sources, "--one-way", "source")
        require(cell, cells, "--one-way", "cell")


def weights_of(sources: Iterable[str], told: Told, by_default: Mapping[str, float]) -> tuple[float, ...]:
    """The weight of the clients at each source. UsageError where nobody asks for anything."""
    sources = list(sources)
    for name in told.weights:
        require(name, sources, "--weight", "source")
    weights = tuple(told.weights.get(name, by_default.get(name, 1.0)) for name in sources)
    if not sum(weights) > 0.0:
        raise UsageError("--weight: no source is left that requests come to")
    return weights


def require(name: str, known: Iterable[str], option: str, kind: str) -> None:
    """UsageError for a name that there is not; it names the nearest that there is."""
    known = list(known)
    if name in known:
        return
    hint = did_you_mean(name, known, otherwise=f"there are: {', '.join(known)}")
    raise UsageError(f"{option}: there is no {kind} {name!r}", hint=hint)
