"""Tables of a router's live state."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from dlbctl.core.snapshot import CellRow, EndpointRow, ServerRow

NOTHING = "-"


def table(*columns: str, numbers: Iterable[str] = ()) -> Table:
    """An empty table in the house's look; the columns named in numbers are set to the right."""
    numbers = set(numbers)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return made


def seconds(value: float | None) -> str:
    """A time in the unit that reads best."""
    if value is None:
        return NOTHING
    return f"{value * 1e3:.1f} ms" if value < 1.0 else f"{value:.2f} s"


def percent(value: float | None) -> str:
    """A share of one as a percentage."""
    return NOTHING if value is None else f"{value:.1%}"


def state(*, up: bool, routable: bool) -> str:
    """Up, down, or up with nothing to route to, coloured."""
    if routable:
        return "[green]up[/green]"
    return "[yellow]idle[/yellow]" if up else "[red]down[/red]"


def cells_table(rows: list[CellRow]) -> Table:
    """Every endpoint in every cell."""
    numbers = ("K", "RIF", "N/K", "OWN", "QUEUED", "RTT", "LATENCY", "COST", "SHARE", "ERRORS", "AGE")
    made = table("CELL", "ENDPOINT", "STATE", *numbers, numbers=numbers)
    for row in rows:
        made.add_row(
            row.cell,
            row.endpoint,
            state(up=row.up, routable=row.routable),
            f"{row.k:g}",
            f"{row.rif:.0f}",
            f"{row.load:.2f}",
            str(row.in_flight),
            seconds(row.queued_s),
            seconds(row.rtt_s),
            seconds(row.latency_s),
            NOTHING if row.cost is None else f"{row.cost:.3f}",
            percent(row.share),
            percent(row.error_rate),
            seconds(row.age_s),
        )
    return made


def endpoints_table(rows: list[EndpointRow]) -> Table:
    """Every endpoint, its policy and what became of it."""
    numbers = ("TARGETS", "IN FLIGHT", "TOKENS/BYTE", "OUTPUT")
    made = table("ENDPOINT", "POLICY", "CONFIGURED", "COST IN USE", *numbers, "WHY", numbers=numbers)
    for row in rows:
        policy = f"[yellow]{row.policy} *[/yellow]" if row.overridden else row.policy
        made.add_row(
            row.endpoint,
            policy,
            row.configured_policy,
            f"{row.cost} [{row.unit}]".replace("[", r"\["),
            f"{row.routable}/{row.candidates}",
            str(row.in_flight),
            f"{row.tokens_per_byte:.3f}",
            f"{row.output_tokens:.0f}",
            row.why or ("switched live; `dlbctl policy revert` undoes it" if row.overridden else ""),
        )
    return made


def servers_table(rows: list[ServerRow]) -> Table:
    """Every server of every leaf."""
    numbers = ("IN FLIGHT", "SLOTS", "WEIGHT", "WORK", "RECENT", "ERRORS")
    made = table("SERVER", "CELL", "STATE", *numbers, "MODELS", numbers=numbers)
    for row in rows:
        made.add_row(
            row.server,
            row.cell,
            state(up=row.up, routable=row.up and bool(row.models)),
            str(row.in_flight),
            str(row.slots or NOTHING),
            f"{row.weight:g}",
            seconds(row.work_s),
            f"{row.requests:.0f}",
            percent(row.error_rate),
            ", ".join(row.models),
        )
    return made
