"""Tables of a router's live state."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dlbctl.core.mechanism import ALARMS
from dlbctl.core.snapshot import CellRow, EndpointRow, ServerRow
from dlbctl.router.open_requests import RequestRow

NOTHING = "-"


def table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table in the house's look; the columns named in numbers are set to the right."""
    numbers = set(numbers)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return made


def add(made: Table, *values: str | Text) -> None:
    """Add a row of literal text: names may have brackets, which rich would take for styles."""
    made.add_row(*(Text(value) if isinstance(value, str) else value for value in values))


def seconds(value: float | None) -> str:
    """A time in the unit that reads best, to three digits."""
    if value is None:
        return NOTHING
    if value < 0.9995:
        return f"{_three_digits(value * 1e3)} ms"
    return f"{_three_digits(value)} s"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    if not 0.01 <= value < 1e6:
        return f"{value:.3g}"
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def percent(value: float | None) -> str:
    """A share of one as a percentage."""
    return NOTHING if value is None else f"{value:.1%}"


def cost(value: float | None, unit: str) -> str:
    """A cost in its unit."""
    if value is None or unit == "s":
        return seconds(value)
    return f"{value:.2f}"


def state(*, up: bool, routable: bool, drained: bool) -> Text:
    """Up, down, drained, or up with nothing to route to. The word says it; the colour only draws the eye."""
    if drained and not up:
        return Text("drained", "yellow")
    if routable:
        return Text("up", "green")
    return Text("idle", "yellow") if up else Text("down", "bold red")


def server_state(row: ServerRow) -> Text:
    """What a server is fit for; one that is well and serves nothing is idle."""
    if row.state == "up":
        return state(up=True, routable=bool(row.models), drained=False)
    return Text(row.state, "bold red" if row.state in {"down", "ejected"} else "yellow")


def cells_table(rows: list[CellRow]) -> RenderableType:
    """Every endpoint in every cell."""
    if not rows:
        return Text("a leaf has no cells; `dlbctl inspect servers` shows its servers")
    numbers = ("K", "RIF", "N/K", "OURS", "QUEUED", "RTT", "LATENCY", "COST", "SHARE", "ERRORS", "AGE")
    made = table("CELL", "ENDPOINT", "STATE", *numbers, numbers=numbers)
    for row in rows:
        add(
            made,
            row.cell,
            row.endpoint or NOTHING,
            state(up=row.up, routable=row.routable, drained=bool(row.drained)),
            f"{row.k:g}",
            f"{row.rif:.0f}",
            f"{row.load:.2f}",
            str(row.in_flight),
            seconds(row.queued_s),
            seconds(row.rtt_s),
            seconds(row.latency_s),
            cost(row.cost, row.unit),
            percent(row.share),
            percent(row.error_rate),
            seconds(row.age_s),
        )
    notes = dict.fromkeys(f"{row.cell}: {row.why}" for row in rows if row.why)
    drained = sorted({address for row in rows if row.up for address in row.drained})
    notes |= dict.fromkeys(f"{address}: drained; `dlbctl undrain` undoes it" for address in drained)
    return Group(made, *(Text(note, "yellow") for note in notes))


def endpoints_table(rows: list[EndpointRow]) -> RenderableType:
    """Every endpoint and its policy; below, a line for each whose cost is not its policy's or that was switched."""
    if not rows:
        return Text("no endpoint is known yet: no server has said what it serves")
    numbers = ("TARGETS", "IN FLIGHT", "WAITING", "TOKENS/BYTE", "OUTPUT")
    made = table("ENDPOINT", "POLICY", "CONFIGURED", "COST IN USE", *numbers, numbers=numbers)
    notes: list[RenderableType] = []
    for row in rows:
        add(
            made,
            row.endpoint,
            Text(f"{row.policy} *", "yellow") if row.overridden else row.policy,
            row.configured_policy,
            f"{row.cost} [{row.unit}]" if row.cost else NOTHING,
            f"{row.routable}/{row.candidates}",
            str(row.in_flight),
            str(row.waiting),
            f"{row.tokens_per_byte:.3f}",
            f"{row.output_tokens:.0f}",
        )
        if row.overridden:
            notes.append(Text(f"* {row.endpoint}: switched live; `dlbctl policy revert` undoes it", "yellow"))
        if row.panic:
            notes.append(Text(f"! {row.endpoint}: panic: all that answer are ejected, and are used anyway", "bold red"))
        notes += [Text(f"! {row.endpoint}: {alarm}: {ALARMS[alarm]}", "bold red") for alarm in row.alarms]
        if row.standing:
            notes.append(Text(f"  {row.endpoint}: {row.standing}"))
        if row.why:
            notes.append(Text(f"  {row.endpoint}: {row.why}"))
    return Group(made, *notes)


def servers_table(rows: list[ServerRow]) -> RenderableType:
    """Every server of every leaf; through which leaf it was seen, where a cell has several. Below, the other leaves."""
    if not rows:
        return Text("no server is known: no leaf has answered")
    faults = [Text(f"{row.cell}: leaf {row.leaf} {row.why}", "yellow") for row in rows if row.why]
    rows = [row for row in rows if row.server]
    leaves = {(row.cell, row.leaf) for row in rows}
    several = len(leaves) > len({cell for cell, _ in leaves})
    numbers = ("IN FLIGHT", "SLOTS", "WEIGHT", "WORK", "RECENT", "ERRORS")
    made = table("SERVER", "CELL", *(["LEAF"] if several else []), "STATE", *numbers, "MODELS", numbers=numbers)
    for row in rows:
        add(
            made,
            row.server,
            row.cell,
            *([row.leaf or NOTHING] if several else []),
            server_state(row),
            str(row.in_flight),
            str(row.slots or NOTHING),
            f"{row.weight:g}",
            seconds(row.work_s),
            f"{row.requests:.0f}",
            percent(row.error_rate),
            ", ".join(row.models) or NOTHING,
        )
    notes = [f"{row.server}: removed live; `dlbctl server add` undoes it" for row in rows if row.live == "removed"]
    notes += [f"{row.server}: added live; a restart forgets it" for row in rows if row.live == "added"]
    return Group(*([made] if rows else []), *faults, *(Text(note, "yellow") for note in notes))


def requests_table(rows: list[RequestRow]) -> RenderableType:
    """Open requests, the oldest first."""
    if not rows:
        return Text("no request is open")
    numbers = ("NUMBER", "AGE", "ATTEMPTS", "PRIORITY", "BYTES OUT")
    made = table("ID", *numbers[:2], "PHASE", "ENDPOINT", "CELL", "SERVER", *numbers[2:], "CLIENT", numbers=numbers)
    for row in rows:
        add(
            made,
            printable(row.id),
            str(row.number),
            seconds(row.age_s),
            row.phase,
            printable(row.endpoint),
            row.cell or NOTHING,
            row.server or NOTHING,
            str(row.attempts),
            str(row.priority),
            str(row.bytes_out),
            row.client or NOTHING,
        )
    return made


def printable(text: str) -> str:
    """What clients chose: nothing of it may move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
