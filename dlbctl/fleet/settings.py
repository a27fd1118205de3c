"""What a FLEET.toml says: regions and their engines, delays between them, what to merge into router files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from dlbctl.core import toml
from dlbctl.core.errors import ConfigError
from dlbctl.fleet.regions import known_regions, one_way_ms

if TYPE_CHECKING:
    from pathlib import Path

# A region's name becomes file and socket names.
RegionName = Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=40)]
Positive = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(ge=0)]
Milliseconds = Annotated[float, Meta(ge=0, le=60_000)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Region(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One region: a cell with its engines and leaf, and the root that its clients use."""

    name: RegionName
    engines: Annotated[int, Meta(ge=1, le=64)] = 4
    profile: str = "l40s"
    time_factor: Positive | None = None  # default: the fleet's
    slowdown: Positive | None = None  # of all engines of the region, to make cells differ
    slots: Annotated[int, Meta(ge=0)] | None = None  # per server, as the leaf file has it
    demand: Weight = 1.0  # share of the clients, in the replay command that `up` suggests
    port: Port = 0  # of the root's client listener; 0: any free one
    tags: tuple[str, ...] = ()  # of the cell, for residency rules


class Override(Struct, forbid_unknown_fields=True, frozen=True):
    """Tables in the form of the generated files, merged over them; the routers validate what comes out."""

    root: dict[str, Any] = {}
    leaf: dict[str, Any] = {}


class FleetSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A whole local fleet."""

    region: Annotated[tuple[Region, ...], Meta(min_length=1)]
    model: Annotated[str, Meta(min_length=1)] = "qwen3-35b"
    policy: str = "discrete/latency"
    time_factor: Positive = 1.0
    stream_interval: Annotated[int, Meta(ge=1)] = 4
    jitter_ms: Milliseconds = 0.0
    delay_ms: dict[str, dict[str, Milliseconds]] = {}
    override: Override = Override()

    def one_way_ms(self, source: str, destination: str) -> float | None:
        """Return the delay from one region to another in ms: the file's, its reverse or the table's."""
        own = self.delay_ms.get(source, {}).get(destination)
        reverse = self.delay_ms.get(destination, {}).get(source)
        if own is None and reverse is None:
            return one_way_ms(source, destination)
        return reverse if own is None else own

    def time_factor_of(self, region: Region) -> float:
        """Return the time factor that the region's engines run with."""
        return self.time_factor if region.time_factor is None else region.time_factor


def default_fleet() -> FleetSettings:
    """Return the fleet of `dlbctl up` without a file: GORGO's three regions, sized for a small laptop."""
    return FleetSettings(
        region=(
            Region(name="us-ashburn", engines=4),
            Region(name="eu-frankfurt", engines=3),
            Region(name="ap-seoul", engines=2),
        )
    )


def load_fleet(path: Path) -> FleetSettings:
    """Read and check a FLEET.toml; ConfigError names the file and the key that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    settings = toml.decode(text, FleetSettings, file=str(path))
    _check_regions(settings, path)
    _check_delays(settings, path)
    return settings


def _check_regions(settings: FleetSettings, path: Path) -> None:
    names = [region.name for region in settings.region]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(
                f"{path}: region[{index}].name: {name!r} appears twice",
                hint="Give every [[region]] a name of its own.",
            )
    ports = [region.port for region in settings.region]
    for index, port in enumerate(ports):
        if port and port in ports[:index]:
            raise ConfigError(
                f"{path}: region[{index}].port: {port} is another region's port too",
                hint="Give each root its own port, or leave the port out.",
            )


def _check_delays(settings: FleetSettings, path: Path) -> None:
    names = {region.name for region in settings.region}
    for source, row in settings.delay_ms.items():
        for name in (source, *row):
            if name not in names:
                raise ConfigError(
                    f"{path}: delay_ms.{source}: no [[region]] is called {name!r}",
                    hint=f"The regions are {', '.join(sorted(names))}.",
                )
    for source in names:
        for destination in names - {source}:
            if settings.one_way_ms(source, destination) is None:
                raise ConfigError(
                    f"{path}: no delay is known from {source!r} to {destination!r}",
                    hint=f"Add `{destination} = MS` under [delay_ms.{source}], or use regions of the "
                    f"built-in table: {', '.join(known_regions())}.",
                )
