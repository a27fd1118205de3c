"""What a NETWORK.toml says: cells with their law of service, sources with their demand, and delays between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from dlbctl.core import toml
from dlbctl.core.curve import Curve
from dlbctl.core.errors import ConfigError, DlbctlError
from dlbctl.core.names import did_you_mean
from dlbctl.fleet.regions import MOST_MS, WITHIN_REGION_MS, between_ms, known_regions
from dlbctl.sim.network import Cell, Network
from dlbctl.sim.service import Polynomial, Queue, Service

if TYPE_CHECKING:
    from pathlib import Path

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]


class CurveSettings(Struct, forbid_unknown_fields=True, frozen=True):
    """l(n) = a + b s ln(1 + exp((n - c)/s)), the curve that leaves learn; b c must be from 5 to 95 % of a."""

    a: Annotated[Positive, Meta(description="Latency of an idle server, seconds.")]
    b: Annotated[Positive, Meta(description="Slope past the knee, seconds per request per server.")]
    c: Annotated[Positive, Meta(description="Where the knee is, requests per server.")]
    s: Annotated[Positive, Meta(description="How wide the knee is, requests per server.")]


class QueueSettings(Struct, forbid_unknown_fields=True, frozen=True):
    """Each server is an M/M/1 queue: l(n) = (1 + n)/rate."""

    rate: Annotated[Positive, Meta(description="What a busy server serves, requests/s.")]


class LinkSettings(Struct, forbid_unknown_fields=True, frozen=True):
    """A link of a routing game, L(z) = idle_s + factor z^degree at z requests/s per server; it is never full."""

    idle_s: Annotated[NotNegative, Meta(description="Latency without flow, seconds.")] = 0.0
    factor: Annotated[NotNegative, Meta(description="How the latency grows with the flow.")] = 0.0
    degree: Annotated[Positive, Meta(description="1, or any other without a constant part.")] = 1.0


class CellSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A cell."""

    name: Annotated[str, Meta(min_length=1, description="What it is called.")]
    servers: Annotated[Positive, Meta(description="How many servers it has.")] = 1.0
    curve: Annotated[
        CurveSettings | None, Meta(description="Its law of service as a latency curve. Each cell has one of the three.")
    ] = None
    queue: Annotated[QueueSettings | None, Meta(description="Its law of service as an M/M/1 queue.")] = None
    link: Annotated[LinkSettings | None, Meta(description="Its law of service as a link of a routing game.")] = None


class SourceSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A place that requests come from."""

    name: Annotated[str, Meta(min_length=1, description="What it is called; often a cell's name.")]
    demand: Annotated[Positive, Meta(description="What it asks for, requests/s.")]
    cells: Annotated[
        tuple[str, ...] | None, Meta(description="The cells that it may use, one at least; all when left out.")
    ] = None


class NetworkSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A whole network."""

    cell: Annotated[tuple[CellSettings, ...], Meta(min_length=1, description="A cell. At least one.")]
    source: Annotated[
        tuple[SourceSettings, ...], Meta(min_length=1, description="A place that requests come from. At least one.")
    ]
    delay_ms: Annotated[
        dict[str, dict[str, float]],
        Meta(
            description="One-way delay by source and cell, `delay_ms.eu-frankfurt.ap-seoul = 105`; the way back "
            "has the same unless it is given too. Pairs left out have that of a built-in table of cloud regions, and a "
            f"source is {WITHIN_REGION_MS:g} ms from the cell of its own name."
        ),
    ] = {}

    def network(self, file: str) -> Network:
        """The network; ConfigError names the file and what in it cannot be."""
        cells = tuple(Cell(c.name, c.servers, _service(c, f"{file}: cell[{i}]")) for i, c in enumerate(self.cell))
        demand: dict[str, float] = {}
        distance: dict[tuple[str, str], float] = {}
        for index, source in enumerate(self.source):
            if source.name in demand:
                raise ConfigError(f"{file}: source[{index}].name: {source.name!r} appears twice")
            demand[source.name] = source.demand
            for name in self._cells_of(source, f"{file}: source[{index}].cells"):
                distance[source.name, name] = self._delay_s(source.name, name, file)
        try:
            return Network(cells, demand, distance)
        except DlbctlError as error:
            raise ConfigError(f"{file}: {error.message}", hint=error.hint) from error

    def _cells_of(self, source: SourceSettings, where: str) -> tuple[str, ...]:
        names = tuple(cell.name for cell in self.cell)
        if source.cells is None:
            return names
        if not source.cells:
            raise ConfigError(f"{where}: {source.name!r} may use no cell", hint="Leave `cells` out to allow all.")
        for name in source.cells:
            if name not in names:
                hint = did_you_mean(name, names, otherwise=f"The cells are {', '.join(names)}.")
                raise ConfigError(f"{where}: no [[cell]] is called {name!r}", hint=hint)
        return source.cells

    def _delay_s(self, source: str, cell: str, file: str) -> float:
        delay_ms = between_ms(self.delay_ms, source, cell)
        if delay_ms is None and source == cell:
            delay_ms = WITHIN_REGION_MS
        if delay_ms is None:
            raise ConfigError(
                f"{file}: no delay is known from {source!r} to {cell!r}",
                hint=f"Add `{cell} = MS` under [delay_ms.{source}], or use regions of the built-in table: "
                f"{', '.join(known_regions())}.",
            )
        return delay_ms / 1e3

    def check(self, file: str) -> None:
        """Refuse delays from or to what there is not, and those that cannot be."""
        names = {cell.name for cell in self.cell} | {source.name for source in self.source}
        for source, row in self.delay_ms.items():
            for name in (source, *row):
                if name not in names:
                    usual = f"There are {', '.join(sorted(names))}."
                    raise ConfigError(
                        f"{file}: delay_ms.{source}: no [[source]] or [[cell]] is called {name!r}",
                        hint=did_you_mean(name, names, otherwise=usual),
                    )
            for cell, delay_ms in row.items():
                if not 0.0 <= delay_ms <= MOST_MS:
                    raise ConfigError(f"{file}: delay_ms.{source}.{cell}: {delay_ms:g} is not from 0 to {MOST_MS:g}")


def _service(cell: CellSettings, where: str) -> Service:
    given = [law for law in (cell.curve, cell.queue, cell.link) if law is not None]
    if len(given) != 1:
        raise ConfigError(f"{where}: cell {cell.name!r} needs one of `curve`, `queue` and `link`")
    try:
        match given[0]:
            case CurveSettings(a=a, b=b, c=c, s=s):
                return Curve(a, b, c, s)
            case QueueSettings(rate=rate):
                return Queue(rate)
            case LinkSettings(idle_s=idle_s, factor=factor, degree=degree):
                return Polynomial(idle_s, factor, degree)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def load_network(path: Path) -> Network:
    """Read and check a NETWORK.toml."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    return toml.decode(text, NetworkSettings, file=str(path)).network(str(path))


def example_network() -> Network:
    """Three regions with unequal servers at 78 % of what they can serve, as in examples/simulate/three-regions.toml."""
    return NetworkSettings(
        cell=(
            CellSettings(name="us-ashburn", servers=10, curve=CurveSettings(a=0.83, b=0.093, c=6, s=1.5)),
            CellSettings(name="eu-frankfurt", servers=8, curve=CurveSettings(a=1.0, b=0.11, c=6, s=1.5)),
            CellSettings(name="ap-seoul", servers=6, curve=CurveSettings(a=0.7, b=0.078, c=6, s=1.5)),
        ),
        source=(
            SourceSettings(name="us-ashburn", demand=100),
            SourceSettings(name="eu-frankfurt", demand=50),
            SourceSettings(name="ap-seoul", demand=50),
        ),
    ).network("example")
