"""The table, the ratios to the peers, and the bars that this project holds itself to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hopbench.measure import CONNECTIONS, Figures
from hopbench.systems import DIRECT, NGINX, ROOT, ROOT_LEAF, SGLANG
from hopbench.traffic import BODY_BYTES, CHUNKS, PACE_S

Rounds = Mapping[str, Sequence[Figures]]  # by system, in the order of the rounds
RSS_LIMIT_MB = 80.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise about a ratio or an amount: its value in each round, and the most that its median may be."""

    text: str
    limit: float
    values: tuple[float, ...]  # empty: not measured in this run

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def missed(self) -> bool:
        return bool(self.values) and self.value > self.limit

    def __str__(self) -> str:
        if not self.values:
            return f"{'-':>8}  {'':18}not measured  {self.text}"
        verdict = "MISSED" if self.missed else "ok"
        spread = f"({min(self.values):.2f} to {max(self.values):.2f})"
        return f"{self.value:8.2f}  {spread:18}{verdict:12}  {self.text}"


def bars(rounds: Rounds) -> list[Bar]:
    """Every bar; ratios are taken inside a round, where both systems met the same disturbances."""
    return [
        Bar(
            "CPU per request: dlbctl root / sglang-router, at most 0.60",
            0.6,
            _ratios(rounds, ROOT, SGLANG, _request_us),
        ),
        Bar(
            "CPU per SSE chunk: dlbctl root / nginx, at most 1.50",
            1.5,
            _ratios(rounds, ROOT, NGINX, _chunk_us),
        ),
        Bar(
            "added p50: dlbctl root -> leaf / sglang-router, at most 1.00",
            1.0,
            tuple(_quotients(added_p50_ms(rounds, ROOT_LEAF), added_p50_ms(rounds, SGLANG))),
        ),
        Bar(
            f"RSS of a dlbctl root, MB, below {RSS_LIMIT_MB:.0f}",
            RSS_LIMIT_MB,
            _values(rounds, ROOT, _rss_mb),
        ),
    ]


def added_p50_ms(rounds: Rounds, system: str) -> list[float]:
    """How much longer than without it the median request took, by round."""
    pairs = zip(rounds.get(system, ()), rounds.get(DIRECT, ()), strict=False)
    return [with_it.p50_ms - without.p50_ms for with_it, without in pairs]


def _request_us(figures: Figures) -> float | None:
    return figures.request_us


def _chunk_us(figures: Figures) -> float | None:
    return figures.chunk_us


def _fast_chunk_us(figures: Figures) -> float | None:
    return figures.fast_chunk_us


def _idle_percent(figures: Figures) -> float | None:
    return figures.idle_percent


def _rss_mb(figures: Figures) -> float | None:
    return figures.rss_mb


_Read = Callable[[Figures], float | None]


def _values(rounds: Rounds, system: str, read: _Read) -> tuple[float, ...]:
    return tuple(value for figures in rounds.get(system, ()) if (value := read(figures)) is not None)


def _ratios(rounds: Rounds, system: str, peer: str, read: _Read) -> tuple[float, ...]:
    return tuple(_quotients(_values(rounds, system, read), _values(rounds, peer, read)))


def _quotients(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=False)]


_COLUMNS: tuple[tuple[str, str, _Read], ...] = (
    ("us/request", "{:.1f}", _request_us),
    ("us/chunk", "{:.2f}", _chunk_us),
    ("us/chunk fast", "{:.2f}", _fast_chunk_us),
    ("idle %", "{:.1f}", _idle_percent),
    ("RSS MB", "{:.0f}", _rss_mb),
)
_NOTES = f"""\
CPU is all CPU time of the system's processes. us/request: JSON answers, {CONNECTIONS} keep-alive connections,
{BODY_BYTES} byte requests. us/chunk: (CPU per streamed answer - CPU per JSON answer) / {CHUNKS} events,
{CONNECTIONS} streams at once, an event every {PACE_S * 1e3:.0f} ms (fast: no pauses, events may be joined).
added p50 ms: one connection, against direct (whose own p50 stands in brackets). idle %: of a core, without
requests. Medians of the rounds; every answer was compared whole with the expected bytes."""


def table(rounds: Rounds) -> str:
    """A line for each system, with the medians of its rounds."""
    head = f"{'system':18}{'added p50 ms':>14}" + "".join(f"{name:>15}" for name, _, _ in _COLUMNS)
    return "\n".join([head, *(_line(rounds, system) for system in rounds), "", _NOTES])


def _line(rounds: Rounds, system: str) -> str:
    cells = [f"{system:18}", f"{_p50_cell(rounds, system):>14}"]
    for _, form, read in _COLUMNS:
        values = _values(rounds, system, read)
        cells.append(f"{form.format(statistics.median(values)) if values else '-':>15}")
    return "".join(cells)


def _p50_cell(rounds: Rounds, system: str) -> str:
    if system == DIRECT:
        return f"({statistics.median(figures.p50_ms for figures in rounds[DIRECT]):.3f})"
    added = added_p50_ms(rounds, system)
    return f"{statistics.median(added):.3f}" if added else "-"


def ratios(rounds: Rounds) -> str:
    """Every system's CPU against each of the two peers that the bars name."""
    heads = ("request / sglang", "request / nginx", "chunk / sglang", "chunk / nginx")
    lines = [f"{'system':18}" + "".join(f"{head:>18}" for head in heads)]
    for system in rounds:
        if system == DIRECT:
            continue
        line = f"{system:18}"
        for read in (_request_us, _chunk_us):
            for peer in (SGLANG, NGINX):
                values = _ratios(rounds, system, peer, read)
                line += f"{statistics.median(values):18.2f}" if values else f"{'-':>18}"
        lines.append(line)
    return "\n".join(lines)
