"""Latency curves drawn with characters: samples, fitted line, operating point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from dlbctl.commands.tables import seconds
from dlbctl.core.curve import Curve
from dlbctl.core.snapshot import CurveRow

# Ticks: every 3 lines of latency, every 10 columns of load.
X_TICKS, Y_TICKS = 6, 4
X_STEP, Y_STEP = 10, 3
WIDTH, HEIGHT = X_TICKS * X_STEP + 1, Y_TICKS * Y_STEP + 1
MARGIN = 10  # for the labels of the y axis
SAMPLE, LINE, BEYOND, HERE = "o", "•", "·", "X"
# Characters tell them apart; the colours are those that every eye tells apart.
STYLES = {SAMPLE: "cyan", LINE: "yellow", BEYOND: "yellow", HERE: "bold magenta"}
# What a tick may be, up to a power of ten.
_ROUND = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
# One character for each series over time.
_SERIES = "123456789abcdefghijklmnopqrstuvwxyz"
# No axis ends before or after these.
_LEAST, _MOST = 1e-9, 1e12


class Plot(NamedTuple):
    """A canvas, its first line the topmost, and what its upper right corner stands for: a load and a latency, say."""

    cells: list[list[str]]
    x_top: float
    y_top: float

    @classmethod
    def empty(cls, x_top: float, y_top: float) -> Plot:
        """A canvas with nothing on it."""
        return cls([[" "] * WIDTH for _ in range(HEIGHT)], x_top, y_top)

    def mark(self, x: float, y: float, what: str) -> None:
        """Put a character where two values are; what lies outside is put on the edge."""
        column = round(_share(x, self.x_top) * (WIDTH - 1))
        line = round(_share(y, self.y_top) * (HEIGHT - 1))
        self.cells[HEIGHT - 1 - line][column] = what


def curve_plots(rows: list[CurveRow]) -> RenderableType:
    """One plot for each endpoint and cell."""
    if not rows:
        return Text("no endpoint is known yet")
    return Group(*(part for row in rows for part in _shown(row)))


def _shown(row: CurveRow) -> list[RenderableType]:
    head = Text(f"\n{row.endpoint} in {row.cell}", style="bold")
    if row.curve is None:
        return [head, Text(f"  no curve: {row.why or 'none was reported'}")]
    return [
        head,
        Text(_facts(row.curve, row.prefill_s_per_token)),
        framed(plot(row, row.curve), _latency_label, "n = N/k"),
        _legend(row),
    ]


def _facts(curve: Curve, prefill_s_per_token: float) -> str:
    prefill = f"; 1000 prompt tokens take {seconds(1000 * prefill_s_per_token)}" if prefill_s_per_token else ""
    return (
        f"  l(n) = {seconds(curve.a)} when idle; from n = {curve.c:.1f} (width {curve.s:.1f}) on"
        f" +{seconds(curve.b)} per request; at most {curve.capacity_per_server():.3g} requests/s per server\n"
        f"  fitted to {curve.samples:.0f} samples, n = {curve.n_min:.1f}..{curve.n_max:.1f};"
        f" SD of ln(1/mu') {curve.sd_log_gradient:.2f}; version {curve.version}{prefill}"
    )


def plot(row: CurveRow, curve: Curve) -> Plot:
    """Draw the curve, its samples over it and where the cell is now over both."""
    n_top = X_TICKS * round_up(max(_drawable(n) for n in (curve.n_max, row.load, *(b.n for b in row.bins))) / X_TICKS)
    loads = [n_top * column / (WIDTH - 1) for column in range(WIDTH)]
    line = [curve.latency_s(n) for n in loads]
    top_s = Y_TICKS * round_up(max(_drawable(s) for s in (*line, *(b.latency_s for b in row.bins))) / Y_TICKS)
    made = Plot.empty(n_top, top_s)
    for n, latency_s in zip(loads, line, strict=True):
        made.mark(n, latency_s, LINE if curve.n_min <= n <= curve.n_max else BEYOND)
    for sample in row.bins:
        made.mark(sample.n, sample.latency_s, SAMPLE)
    made.mark(row.load, curve.latency_s(row.load), HERE)
    return made


def time_plot(time_s: Sequence[float], series: Mapping[str, Sequence[float]], quantity: str) -> RenderableType:
    """Several series over one time, each drawn with a digit of its own; what is drawn later covers the rest."""
    top = Y_TICKS * round_up(max(_drawable(value) for values in series.values() for value in values) / Y_TICKS)
    made = Plot.empty(X_TICKS * round_up(_drawable(time_s[-1]) / X_TICKS), top)
    marks = dict(zip(series, _SERIES, strict=False))
    for name, mark in marks.items():
        for at_s, value in zip(time_s, series[name], strict=True):
            made.mark(at_s, value, mark)
    legend = "   ".join(f"{mark} {name}" for name, mark in marks.items())
    return Group(framed(made, lambda value: f"{value:g}", "s"), Text(f"{'':>{MARGIN}} {quantity}: {legend}"))


def log_plot(series: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str) -> RenderableType:
    """Several series of points on logarithmic axes, each drawn with a digit of its own."""
    points = [point for several in series.values() for point in several]
    (x_low, x_high), (y_low, y_high) = (
        (min(values), max(values)) for values in ([_drawable(point[axis]) for point in points] for axis in (0, 1))
    )
    made = Plot.empty(*(max(math.log(high / low), _LEAST) for low, high in ((x_low, x_high), (y_low, y_high))))
    marks = dict(zip(series, _SERIES, strict=False))
    for name, mark in marks.items():
        for x, y in series[name]:
            made.mark(math.log(_drawable(x) / x_low), math.log(_drawable(y) / y_low), mark)
    legend = "   ".join(f"{mark} {name}" for name, mark in marks.items())
    canvas = framed(
        made, lambda value: f"{y_low * math.exp(value):.2g}", x_name, lambda value: f"{x_low * math.exp(value):.2g}"
    )
    return Group(canvas, Text(f"{'':>{MARGIN}} {y_name}: {legend}"))


def round_up(step: float) -> float:
    """The next round number for a tick, at most half as large again."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((digit * power for digit in _ROUND if digit * power >= step), 10.0 * power)


def _share(value: float, top: float) -> float:
    return min(_drawable(value) / top, 1.0)


def _drawable(value: float) -> float:
    """The number, or the nearest that an axis has; a router may report what no clock shows."""
    return min(max(value, _LEAST), _MOST) if value > 0.0 else _LEAST  # nor not-a-number


def framed(
    made: Plot, y_label: Callable[[float], str], x_name: str, x_label: Callable[[float], str] = "{:g}".format
) -> Text:
    """The canvas with axes. x_name: what the numbers under it are of."""
    text = Text()
    for number, line in enumerate(made.cells):
        level = HEIGHT - 1 - number
        at_tick = level % Y_STEP == 0
        label = y_label(made.y_top * level / (HEIGHT - 1)) if at_tick else ""
        text.append(f"{label:>{MARGIN}} {'+' if at_tick else '|'}")
        for character in "".join(line).rstrip():
            text.append(character, style=STYLES.get(character, ""))
        text.append("\n")
    rule = ("+" + "-" * (X_STEP - 1)) * X_TICKS + "+"
    ticks = (x_label(made.x_top * tick / X_TICKS) for tick in range(X_TICKS + 1))
    # Each label is centred under its tick.
    labels = "".join(f"{tick:^{X_STEP}}" for tick in ticks).rstrip()
    return text.append(f"{'':>{MARGIN + 2}}{rule}\n{'':>{MARGIN + 3 - X_STEP // 2}}{labels}  {x_name}")


def _latency_label(latency_s: float) -> str:
    return seconds(latency_s) if latency_s else "0"


def _legend(row: CurveRow) -> Text:
    legend = Text(f"{'':>{MARGIN}} ")
    for character, words in ((SAMPLE, "samples"), (LINE, "fitted"), (BEYOND, "beyond the samples")):
        legend.append(character, style=STYLES[character]).append(f" {words}   ")
    now = f" now: n = {row.load:.2f}, l = {seconds(row.latency_s)}, 1/mu' = {seconds(row.gradient_s)}"
    return legend.append(HERE, style=STYLES[HERE]).append(now)
