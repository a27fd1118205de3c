"""`dlbctl replay`: a trace's requests at their instants, and a report."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from dlbctl.commands.output import note, show, show_json
from dlbctl.core.errors import ConfigError, DlbctlError, ObjectiveMissedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dlbctl.replay.execute import Report
    from dlbctl.replay.run import Standing
    from dlbctl.replay.selection import Selection
    from dlbctl.replay.slo import Objective

_PLAIN_PROGRESS_PERIOD_S = 10.0


class _Endpoint(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"


class InterruptedRunError(DlbctlError):
    """The user ended the run; 130 is what a shell reports for SIGINT."""

    exit_code: ClassVar[int] = 130


_Trace = Annotated[Path, typer.Argument(metavar="TRACE.jsonl", help="Mooncake-format trace, JSON lines.")]
_Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]URL[=WEIGHT]",
        envvar="DLBCTL_TARGET",
        help="Where to send; repeat it, or use commas, to spread sessions by weight. (default: http://127.0.0.1:8080)",
        show_default=False,
    ),
]
_Model = Annotated[
    str | None,
    typer.Option(help="Send every row to this model. (default: the row's own, else the only one served)"),
]
_Speedup = Annotated[float | None, typer.Option(help="Divide the trace's times by this: 2 is twice as fast.")]
_TimeScale = Annotated[float | None, typer.Option(help="Multiply the trace's times by this: 2 is half as fast.")]
_Start = Annotated[float, typer.Option(min=0, metavar="S", help="Leave out rows before this second of the trace.")]
_End = Annotated[
    float | None, typer.Option(min=0, metavar="S", help="Leave out rows from this second of the trace on.")
]
_Limit = Annotated[int | None, typer.Option(min=1, help="Send at most this many rows.")]
_MaxConcurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Hold requests back beyond this many in flight; timed from the schedule."),
]
_MaxOutput = Annotated[int | None, typer.Option(min=1, help="Ask for at most this many output tokens.")]
_MaxInput = Annotated[int | None, typer.Option(min=1, help="Leave out rows with more input tokens.")]
_BlockSize = Annotated[int, typer.Option(min=1, help="Tokens that one of the trace's hash ids stands for.")]
_EndpointOption = Annotated[_Endpoint, typer.Option("--endpoint", help="Which OpenAI API to call.")]
_Stream = Annotated[bool, typer.Option("--stream/--no-stream", help="Ask for streams; without, no TTFT.")]
_ApiKeyFile = Annotated[
    Path | None, typer.Option(help="File with the API key to send. (default: DLBCTL_API_KEY, else none)")
]
_ConnectTimeout = Annotated[float, typer.Option(min=0.001, metavar="S", help="Limit on connecting.")]
_Timeout = Annotated[float, typer.Option(min=0.001, metavar="S", help="Limit on one request, once connected.")]
_DrainTimeout = Annotated[
    float | None,
    typer.Option(
        min=0, max=86_400, metavar="S", help="After the last row, wait this long. (default: for every answer)"
    ),
]
_Slo = Annotated[
    str | None,
    typer.Option(metavar="ttft=2s,e2e=30s[,goodput=0.95]", help="Report goodput; exit 5 if missed."),
]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write requests.jsonl, summary.json and .csv here.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace a former run in --out.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def replay(
    trace: _Trace,
    target: _Target = None,
    model: _Model = None,
    speedup: _Speedup = None,
    time_scale: _TimeScale = None,
    start: _Start = 0.0,
    end: _End = None,
    limit: _Limit = None,
    max_concurrency: _MaxConcurrency = None,
    max_output: _MaxOutput = None,
    max_input: _MaxInput = None,
    block_size: _BlockSize = 512,
    endpoint: _EndpointOption = _Endpoint.CHAT,
    stream: _Stream = True,
    api_key_file: _ApiKeyFile = None,
    connect_timeout: _ConnectTimeout = 10.0,
    timeout: _Timeout = 600.0,
    drain_timeout: _DrainTimeout = None,
    slo: _Slo = None,
    out: _Out = None,
    force: _Force = False,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Send a trace's requests open loop at their scheduled instants, and report.

    Latencies count from the scheduled instant, so a late send shows in them. Exit codes: 0 ok, 1 a request
    failed, 2 usage, 3 not a trace, 4 no target reachable, 5 goodput missed, 130 interrupted.
    """
    from dlbctl.replay.execute import Options, execute
    from dlbctl.replay.tables import tables
    from dlbctl.replay.targets import DEFAULT_TARGET, parse_targets

    options = Options(
        trace=trace,
        targets=parse_targets(target or [DEFAULT_TARGET]),
        model=model,
        pace=_pace(speedup, time_scale),
        selection=_selection(start, end, limit, max_input),
        block_tokens=block_size,
        endpoint=endpoint.value,
        stream=stream,
        max_output_tokens=max_output,
        max_in_flight=max_concurrency,
        api_key=_api_key(api_key_file),
        connect_timeout_s=connect_timeout,
        timeout_s=timeout,
        drain_timeout_s=drain_timeout,
        objective=_objective(slo, stream=stream),
        out=out,
        force=force,
    )
    with _progress(quiet=quiet) as watch:
        report = execute(options, watch=watch, warn=_warn)
    if json:
        show_json(report.summary)
    else:
        show(*tables(report.summary))
    _conclude(report)


def _pace(speedup: float | None, time_scale: float | None) -> float:
    if speedup is not None and time_scale is not None:
        raise UsageError(
            "--speedup and --time-scale are two ways to say one thing: give one",
            hint="--speedup 2 and --time-scale 0.5 both send twice as fast",
        )
    name, factor = ("--speedup", speedup) if speedup is not None else ("--time-scale", time_scale)
    if factor is None:
        return 1.0
    pace = 1.0 / factor if factor > 0 and name == "--speedup" else factor
    if not 0 < pace < math.inf:
        raise UsageError(f"{name} {factor:g}: must be a number above 0")
    return pace


def _selection(start: float, end: float | None, limit: int | None, max_input: int | None) -> Selection:
    from dlbctl.replay.selection import Selection

    for name, value in (("--start", start), ("--end", end)):
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{name} {value}: must be a number of seconds")
    return Selection(start, end, limit, max_input)


def _objective(text: str | None, *, stream: bool) -> Objective | None:
    from dlbctl.replay.slo import parse_objective

    objective = parse_objective(text) if text is not None else None
    if objective is not None and objective.ttft_s is not None and not stream:
        raise UsageError("--slo ttft needs streams", hint="leave out --no-stream, or limit e2e alone")
    return objective


def _api_key(path: Path | None) -> str | None:
    if path is None:
        source, text = "DLBCTL_API_KEY", os.environ.get("DLBCTL_API_KEY", "")
    else:
        source = f"--api-key-file {path}"
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot read it: {error}") from error
    key = text.strip()
    if (path is not None and not key) or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{source}: not one key of printable characters", hint="one line, the key alone")
    return key or None


def _warn(text: str) -> None:
    note(f"dlbctl: warning: {text}")


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Standing], None]]:
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar() as watch:
            yield watch
    else:
        yield _plain_lines()


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Standing], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Twice a second, by the run's own watch: a refresh thread would disturb what is measured.
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(now: Standing) -> None:
            bar.update(task, completed=now.sent, total=now.total, description=_in_words(now), refresh=True)

        yield watch


def _plain_lines() -> Callable[[Standing], None]:
    said_s = 0.0

    def watch(now: Standing) -> None:
        nonlocal said_s
        if now.elapsed_s - said_s >= _PLAIN_PROGRESS_PERIOD_S:
            said_s = now.elapsed_s
            note(f"{now.elapsed_s:.0f} s: {_in_words(now)}")

    return watch


def _in_words(now: Standing) -> str:
    return f"{now.sent}/{now.total} sent, {now.in_flight} in flight, {now.ok} ok, {now.failed} failed"


def _conclude(report: Report) -> None:
    summary = report.summary
    for doubt in summary.invalid_because:
        note(f"dlbctl: INVALID RUN: {doubt}; use a less busy machine or a slower pace")
    counts, slo = summary.counts, summary.slo
    if report.interrupted:
        raise InterruptedRunError(f"interrupted: {counts.sent} of {counts.rows} rows were sent")
    if counts.failed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary.failed.items())
        raise DlbctlError(
            f"{counts.failed} of {counts.sent} requests failed: {reasons}",
            hint="requests.jsonl in --out DIR tells each one's error",
        )
    if slo is not None and slo.met is False:
        raise ObjectiveMissedError(f"goodput {slo.share:.4f} is below {slo.target:g}")
