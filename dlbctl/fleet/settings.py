"""What a FLEET.toml says: regions and their engines, delays between them, what to merge into router files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from dlbctl.core import toml
from dlbctl.core.errors import ConfigError, shortened
from dlbctl.core.names import did_you_mean
from dlbctl.core.settings import DEFAULT_POLICY
from dlbctl.fleet.regions import MOST_MS, between_ms, known_regions

if TYPE_CHECKING:
    from pathlib import Path

# A region's name becomes file and socket names.
_REGION_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
Positive = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(ge=0)]
Milliseconds = Annotated[float, Meta(ge=0, le=MOST_MS)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Region(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One region: a cell with its engines and leaf, and the root that its clients use."""

    name: Annotated[str, Meta(description="What the region and its cell are called.")]
    engines: Annotated[int, Meta(ge=1, le=64, description="How many engines its cell has.")] = 4
    profile: Annotated[str, Meta(description="What its engines are, as `dlbctl engine --profile` takes it.")] = "l40s"
    time_factor: Annotated[
        Positive | None,
        Meta(description="How many times faster than life its engines run; when left out, the fleet's."),
    ] = None
    slowdown: Annotated[
        Positive | None,
        Meta(description="How many times slower than their profile its engines are, to make cells differ."),
    ] = None
    slots: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="`slots` of each of its servers in the leaf's file."),
    ] = None
    demand: Annotated[
        Weight,
        Meta(description="Weight of its root in the replay command that `dlbctl up` suggests."),
    ] = 1.0
    port: Annotated[Port, Meta(description="Port of its root for clients; 0 for any free one.")] = 0


class Override(Struct, forbid_unknown_fields=True, frozen=True):
    """Tables in the form of the generated files, merged over them; the routers validate what comes out."""

    root: Annotated[dict[str, Any], Meta(description="Merged over each generated root.toml.")] = {}
    leaf: Annotated[dict[str, Any], Meta(description="Merged over each generated leaf.toml.")] = {}


class FleetSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A whole local fleet."""

    region: Annotated[
        tuple[Region, ...],
        Meta(
            min_length=1,
            description="A region: a cell with its engines and leaf, and the root that its clients use. At least one.",
        ),
    ]
    model: Annotated[str, Meta(min_length=1, description="The model that every engine serves.")] = "qwen3-35b"
    policy: Annotated[str, Meta(description="Its policy in every root, for instance `discrete/rif`.")] = DEFAULT_POLICY[
        "root"
    ]
    time_factor: Annotated[Positive, Meta(description="How many times faster than life the engines run.")] = 1.0
    stream_interval: Annotated[
        int,
        Meta(ge=1, description="Tokens in one event of a stream: more make fewer writes."),
    ] = 4
    jitter_ms: Annotated[Milliseconds, Meta(description="Up to so much is added to each one-way delay, at random.")] = (
        0.0
    )
    delay_ms: Annotated[
        dict[str, dict[str, float]],
        Meta(
            description="One-way delay by source and destination, `delay_ms.eu-frankfurt.ap-seoul = 105`; the way back "
            "has the same unless it is given too, and pairs left out have that of a built-in table of cloud regions."
        ),
    ] = {}
    override: Annotated[
        Override,
        Meta(description="Tables merged over the generated files, which are checked as a whole afterwards."),
    ] = Override()

    def one_way_ms(self, source: str, destination: str) -> float | None:
        """Return the delay from one region to another in ms: the file's, its reverse or the table's."""
        return between_ms(self.delay_ms, source, destination)

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
        if not _REGION_NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: region[{index}].name: {shortened(name)!r} is not a name for a region",
                hint="Write small letters, digits and, between them, hyphens; at most 40.",
            )
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
                    hint=did_you_mean(name, names, otherwise=f"The regions are {', '.join(sorted(names))}."),
                )
        for destination, delay_ms in row.items():
            if not 0.0 <= delay_ms <= MOST_MS:
                raise ConfigError(f"{path}: delay_ms.{source}.{destination}: {delay_ms:g} is not from 0 to {MOST_MS:g}")
    for source in names:
        for destination in names - {source}:
            if settings.one_way_ms(source, destination) is None:
                raise ConfigError(
                    f"{path}: no delay is known from {source!r} to {destination!r}",
                    hint=f"Add `{destination} = MS` under [delay_ms.{source}], or use regions of the "
                    f"built-in table: {', '.join(known_regions())}.",
                )
