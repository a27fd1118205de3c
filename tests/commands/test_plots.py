"""Curves as characters: any curve has a picture of the right size, and things are where they should be."""

from __future__ import annotations

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from dlbctl.commands.plots import (
    BEYOND,
    HEIGHT,
    HERE,
    LINE,
    MARGIN,
    SAMPLE,
    STYLES,
    WIDTH,
    Plot,
    curve_plots,
    plot,
    round_up,
)
from dlbctl.core.bins import BIN_LIMIT, LATENCY_MAX_S, LATENCY_MIN_S, LOAD_MAX, Bin
from dlbctl.core.curve import Curve
from dlbctl.core.snapshot import CurveRow

KNEE = Curve(a=0.8, b=0.096, c=6.0, s=1.5, version=3, sd_log_gradient=0.1, n_min=1.0, n_max=12.0, samples=100.0)

positive = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
anything = st.floats()


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    a, c = draw(positive), draw(positive)
    b = draw(st.floats(0.06, 0.94)) * a / c
    s = draw(positive)
    assume(0.0 < b < math.inf and s >= 1e-6 * c)
    try:
        return Curve(a, b, c, s, 1, draw(anything), draw(anything), draw(anything), draw(anything))
    except ValueError:  # the products of extremes leave the box
        assume(False)
        raise


bins = st.builds(
    Bin, st.floats(0, LOAD_MAX), st.floats(LATENCY_MIN_S, LATENCY_MAX_S), st.floats(1e-9, 1e9), st.floats(0, 1e9)
)


def row(
    curve: Curve | None = KNEE, *, load: float = 4.0, samples: list[Bin] | None = None, why: str = "", name: str = "m"
) -> CurveRow:
    latency_s = curve.latency_s(load) if curve else None
    return CurveRow(
        cell="eu",
        endpoint=name,
        curve=curve,
        load=load,
        latency_s=latency_s,
        gradient_s=None,
        why=why,
        bins=samples or [],
    )


def text(*rows: CurveRow) -> list[str]:
    console = Console(width=1000, color_system=None)
    with console.capture() as capture:
        console.print(curve_plots(list(rows)))
    return capture.get().splitlines()


def places(made: Plot, what: str) -> set[tuple[int, int]]:
    """Columns and heights of a character; the lowest line is 0."""
    return {
        (column, HEIGHT - 1 - number)
        for number, line in enumerate(made.cells)
        for column, character in enumerate(line)
        if character == what
    }


@settings(derandomize=True, deadline=None)
@given(curves(), st.lists(bins, max_size=BIN_LIMIT), anything)
def test_any_curve_has_a_picture_of_the_right_size(curve: Curve, samples: list[Bin], load: float) -> None:
    seen = row(curve, samples=samples)
    seen.load = load
    made = plot(seen, curve)
    assert len(made.cells) == HEIGHT
    assert {len(line) for line in made.cells} == {WIDTH}
    assert {character for line in made.cells for character in line} <= {" ", *STYLES}
    assert len(places(made, HERE)) == 1
    framed = text(seen)[4 : 4 + HEIGHT]
    assert {line[MARGIN + 1] for line in framed} == {"|", "+"}
    assert max(map(len, framed)) <= MARGIN + 2 + WIDTH


@settings(derandomize=True, deadline=None)
@given(st.floats(1e-9, 1e12))
def test_an_axis_ends_at_a_round_number_soon_after_the_last_point(step: float) -> None:
    assert step <= round_up(step) * (1 + 1e-9)
    assert round_up(step) <= 1.5 * step * (1 + 1e-9)


def test_samples_the_line_and_the_operating_point_are_where_they_belong() -> None:
    samples = [Bin(2.0, 1.2, 5.0, 0.1), Bin(10.0, 0.3, 5.0, 0.1)]
    made = plot(row(samples=samples, load=6.0), KNEE)
    assert (made.x_top, made.y_top) == (12.0, 1.6)  # the line ends at 1.38 s

    def place(n: float, latency_s: float) -> tuple[int, int]:
        return round(n / 12.0 * (WIDTH - 1)), round(latency_s / 1.6 * (HEIGHT - 1))

    assert places(made, SAMPLE) == {place(2.0, 1.2), place(10.0, 0.3)}
    assert places(made, HERE) == {place(6.0, KNEE.latency_s(6.0))}
    for column, height in places(made, LINE) | places(made, BEYOND):
        assert height == round(KNEE.latency_s(column / (WIDTH - 1) * 12.0) / 1.6 * (HEIGHT - 1))


def test_the_line_is_another_one_where_no_load_was_seen() -> None:
    made = plot(row(load=24.0), KNEE)
    seen = {column / (WIDTH - 1) * made.x_top for column, _ in places(made, LINE)}
    beyond = {column / (WIDTH - 1) * made.x_top for column, _ in places(made, BEYOND)}
    assert min(seen) >= KNEE.n_min
    assert max(seen) <= KNEE.n_max
    assert len(seen) + len(beyond) == WIDTH - 1
    assert all(not KNEE.n_min <= n <= KNEE.n_max for n in beyond)


def test_the_axes_begin_at_zero_and_every_label_is_at_its_tick() -> None:
    lines = text(row())
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("1.60 s +"))
    labels = {line[:MARGIN].strip() for line in lines[first : first + HEIGHT]} - {""}
    assert labels == {"1.60 s", "1.20 s", "800 ms", "400 ms", "0"}
    rule, numbers, legend = lines[first + HEIGHT : first + HEIGHT + 3]
    ticks = [number for number, character in enumerate(rule) if character == "+"]
    assert ticks == list(range(MARGIN + 2, MARGIN + 2 + WIDTH, 10))
    for tick, label in zip(ticks, ["0", "2", "4", "6", "8", "10", "12"], strict=True):
        assert numbers[tick - 1 : tick + 2].strip() == label
    assert numbers.endswith("n = N/k")
    assert "X now: n = 4.00, l = 834 ms" in legend
    assert max(map(len, lines)) <= 120


def test_without_a_curve_the_reason_is_told() -> None:
    assert text(row(None, why="9 effective samples, 30 needed"))[-1] == "  no curve: 9 effective samples, 30 needed"
    assert text() == ["no endpoint is known yet"]


def test_names_are_shown_as_they_are() -> None:
    assert "[red]m[/x] in eu" in text(row(name="[red]m[/x]"))
