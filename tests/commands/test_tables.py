"""Tables for people: units, what cannot be told, names that look like styles, and nothing ever cut."""

from __future__ import annotations

import pytest
from rich.console import Console, RenderableType

from dlbctl.commands import output
from dlbctl.commands.tables import NOTHING, cells_table, endpoints_table, percent, seconds, servers_table
from dlbctl.core.snapshot import CellRow, EndpointRow, ServerRow

TRICKY = "[red]a[/b]:car: é"


def cell(**values: object) -> CellRow:
    fields = {
        "cell": "eu-frankfurt",
        "endpoint": "qwen3-35b",
        "up": True,
        "routable": True,
        "k": 12.0,
        "rif": 345.0,
        "load": 28.75,
        "in_flight": 123,
        "queued_s": 12.3456,
        "share": 0.1234,
        "rtt_s": 0.0961,
        "cost": 17.643,
        "unit": "s",
        "latency_s": 6.1543,
        "error_rate": 0.0,
        "age_s": 0.0096,
    }
    return CellRow(**{**fields, **values})  # type: ignore[arg-type]


UNKNOWN: dict[str, object] = dict.fromkeys(("queued_s", "share", "rtt_s", "cost", "latency_s", "error_rate", "age_s"))


def endpoint(**values: object) -> EndpointRow:
    fields = {
        "endpoint": "qwen3-35b",
        "policy": "discrete/latency",
        "configured_policy": "discrete/latency",
        "overridden": False,
        "cost": "latency",
        "unit": "s",
        "why": "",
        "routable": 2,
        "candidates": 3,
        "in_flight": 7,
        "waiting": 0,
        "panic": False,
        "tokens_per_byte": 0.25,
        "output_tokens": 128.0,
    }
    return EndpointRow(**{**fields, **values})  # type: ignore[arg-type]


def server(**values: object) -> ServerRow:
    fields = {
        "cell": "eu",
        "server": "gpu-1",
        "address": "http://gpu-1:8000",
        "up": True,
        "state": "up",
        "models": ("m",),
        "in_flight": 3,
        "slots": 0,
        "weight": 1.0,
        "work_s": 0.5,
        "requests": 12.0,
        "error_rate": None,
    }
    return ServerRow(**{**fields, **values})  # type: ignore[arg-type]


def shown(capsys: pytest.CaptureFixture[str], part: RenderableType) -> list[str]:
    output.show(part)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, NOTHING),
        (0.0, "0 ms"),
        (0.000_000_4, "0.0004 ms"),
        (0.00024, "0.24 ms"),
        (0.0096, "9.60 ms"),
        (0.00999999, "10.0 ms"),
        (0.187, "187 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (6.1543, "6.15 s"),
        (12.34, "12.3 s"),
        (3600.0, "3600 s"),
        (2e12, "2e+12 s"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_fits(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_a_share_is_a_percentage() -> None:
    assert [percent(0.1234), percent(1.0), percent(0.0), percent(None)] == ["12.3%", "100.0%", "0.0%", NOTHING]


def test_a_row_of_cells_says_each_figure_in_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    head, line = shown(capsys, cells_table([cell()]))
    assert dict(zip(head.split(), _values(line), strict=True)) == {
        "CELL": "eu-frankfurt",
        "ENDPOINT": "qwen3-35b",
        "STATE": "up",
        "K": "12",
        "RIF": "345",
        "N/K": "28.75",
        "OURS": "123",
        "QUEUED": "12.3 s",
        "RTT": "96.1 ms",
        "LATENCY": "6.15 s",
        "COST": "17.6 s",
        "SHARE": "12.3%",
        "ERRORS": "0.0%",
        "AGE": "9.60 ms",
    }
    assert len(line) <= 120


def _values(line: str) -> list[str]:
    """Columns are two spaces apart, a figure and its unit one."""
    return [part.strip() for part in line.split("  ") if part.strip()]


def test_a_cost_that_is_no_time_is_a_bare_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert "12.50" in _values(shown(capsys, cells_table([cell(cost=12.5, unit="requests/server")]))[1])


def test_a_policy_that_takes_no_cost_has_a_dash_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    line = shown(capsys, endpoints_table([endpoint(policy="weighted-random", cost="", unit="")]))[1]
    assert _values(line)[1:4] == ["weighted-random", "discrete/latency", NOTHING]


def test_what_cannot_be_told_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    line = shown(capsys, cells_table([cell(up=False, routable=False, **UNKNOWN)]))[1]
    assert _values(line).count(NOTHING) == len(UNKNOWN)
    assert "down" in line
    assert _values(shown(capsys, servers_table([server(models=(), up=False)]))[1])[-2:] == [NOTHING, NOTHING]


def test_names_that_look_like_styles_or_emoji_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    for part in (
        cells_table([cell(cell=TRICKY, endpoint=TRICKY)]),
        endpoints_table([endpoint(endpoint=TRICKY, overridden=True, why=f"no {TRICKY}")]),
        servers_table([server(cell=TRICKY, server=TRICKY, models=(TRICKY,))]),
        f"to {TRICKY}",
    ):
        assert TRICKY in "\n".join(shown(capsys, part))


def test_nothing_is_cut_in_a_pipe_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    models = tuple(f"organisation/model-{n}" for n in range(60))
    assert shown(capsys, servers_table([server(models=models)]))[1].endswith(", ".join(models))
    why = "latency once " + ", ".join(f"cell-{n}" for n in range(80)) + " have a latency curve"
    assert shown(capsys, endpoints_table([endpoint(why=why)]))[-1] == f"  qwen3-35b: {why}"


def test_a_switched_policy_is_marked_and_the_way_back_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, endpoints_table([endpoint(policy="discrete/gradient", overridden=True), endpoint()]))
    assert _values(lines[1])[1:3] == ["discrete/gradient *", "discrete/latency"]
    assert "*" not in lines[2]
    assert lines[3] == "* qwen3-35b: switched live; `dlbctl policy revert` undoes it"
    assert len(lines) == 4


def test_alarms_and_where_a_mechanism_stands_are_said_below(capsys: pytest.CaptureFixture[str]) -> None:
    standing = "discrete: a request takes 30 x the round trip"
    lines = shown(capsys, endpoints_table([endpoint(alarms=("oscillation",), standing=standing)]))[2:]
    assert lines[0].startswith("! qwen3-35b: oscillation: its shares swing")
    assert lines[1] == f"  qwen3-35b: {standing}"


def test_leaves_are_named_where_a_cell_has_several(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = server(leaf="http://l1:1"), server(leaf="http://l2:1", up=False, state="down")
    assert "LEAF" not in shown(capsys, servers_table([one, server(cell="us", leaf="http://l3:1")]))[0]
    head, *lines = shown(capsys, servers_table([one, other]))
    assert "LEAF" in head
    assert [_values(line)[2:4] for line in lines] == [["http://l1:1", "up"], ["http://l2:1", "down"]]


def test_what_keeps_leaves_from_being_used_is_said_once_below(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [cell(why="leaf http://a:1 does not answer"), cell(why="leaf http://a:1 does not answer"), cell(cell="us")]
    assert shown(capsys, cells_table(rows))[-1] == "eu-frankfurt: leaf http://a:1 does not answer"
    silent = ServerRow(cell="us", leaf="http://b:1", why="refuses this root: its peer token is another one")
    said = f"us: leaf http://b:1 {silent.why}"
    lines = shown(capsys, servers_table([server(), silent]))
    assert (len(lines), lines[-1]) == (3, said)
    assert shown(capsys, servers_table([silent])) == [said], "and no empty table"


def test_an_empty_table_says_why() -> None:
    for part in (cells_table([]), endpoints_table([]), servers_table([])):
        console = Console(width=200)
        with console.capture() as capture:
            console.print(part)
        assert len(capture.get().strip()) > 20
