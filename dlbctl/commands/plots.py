"""Latency curves drawn with characters: samples, fitted line, operating point."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from dlbctl.commands.tables import seconds
from dlbctl.core.snapshot import CurveRow

WIDTH, HEIGHT = 64, 14
SAMPLE, LINE, HERE = "o", "·", "X"


def curve_plots(rows: list[CurveRow]) -> RenderableType:
    """One plot for each endpoint and cell."""
    if not rows:
        return Text("no endpoint is known yet")
    return Group(*(part for row in rows for part in _plot(row)))


def _plot(row: CurveRow) -> list[RenderableType]:
    head = Text(f"\n{row.endpoint} in {row.cell}", style="bold")
    if row.curve is None:
        return [head, Text(f"  no curve: {row.why}")]
    curve = row.curve
    facts = (
        f"  l(n) = {curve.a:.3f} + {curve.b:.4f} * {curve.s:.2f} * softplus((n - {curve.c:.2f}) / {curve.s:.2f}) s"
        f"   version {curve.version}, {curve.samples:.0f} samples, n {curve.n_min:.1f}..{curve.n_max:.1f},"
        f" SD ln(1/mu') {curve.sd_log_gradient:.2f}"
    )
    here = f"  {HERE} now: n = {row.load:.2f}, l = {seconds(row.latency_s)}, 1/mu' = {seconds(row.gradient_s)}"
    return [head, Text(facts), Text(here), _canvas(row)]


def _canvas(row: CurveRow) -> Text:
    curve = row.curve
    assert curve is not None
    n_top = max([curve.n_max, row.load, *(b.n for b in row.bins), 1.0]) * 1.05
    latencies = [curve.latency_s(n_top * column / (WIDTH - 1)) for column in range(WIDTH)]
    top_s = max([*latencies, *(b.latency_s for b in row.bins)]) * 1.05
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def mark(n: float, latency_s: float, what: str) -> None:
        column = round(n / n_top * (WIDTH - 1))
        line = HEIGHT - 1 - round(latency_s / top_s * (HEIGHT - 1))
        cells[min(max(line, 0), HEIGHT - 1)][min(max(column, 0), WIDTH - 1)] = what

    for column, latency_s in enumerate(latencies):
        mark(n_top * column / (WIDTH - 1), latency_s, LINE)
    for sample in row.bins:
        mark(sample.n, sample.latency_s, SAMPLE)
    mark(row.load, curve.latency_s(row.load), HERE)
    return _framed(cells, top_s, n_top)


def _framed(cells: list[list[str]], top_s: float, n_top: float) -> Text:
    styles = {SAMPLE: "cyan", LINE: "green", HERE: "bold red"}
    text = Text()
    for number, line in enumerate(cells):
        at_s = top_s * (HEIGHT - 1 - number) / (HEIGHT - 1)
        text.append(f"{seconds(at_s) if number % 4 == 0 else '':>10} |")
        for character in line:
            text.append(character, style=styles.get(character, ""))
        text.append("\n")
    text.append(f"{'':>10} +{'-' * WIDTH}\n")
    text.append(f"{'':>11} 0{n_top:>{WIDTH - 1}.1f}  n = N/k, requests in flight per server")
    return text
