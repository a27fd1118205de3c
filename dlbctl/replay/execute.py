"""One replay from its options to its summary: trace, targets, run, files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dlbctl import __version__
from dlbctl.core.errors import DlbctlError, UsageError
from dlbctl.replay.journal import Journal
from dlbctl.replay.preflight import only_model, reachable
from dlbctl.replay.prompts import PromptBuilder
from dlbctl.replay.report import summarise
from dlbctl.replay.run import Plan, Run
from dlbctl.replay.selection import select
from dlbctl.replay.tally import Tally
from dlbctl.replay.trace import BLOCK_TOKENS, read_trace
from dlbctl.replay.wire import Endpoint, RequestWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dlbctl.replay.outcome import Outcome
    from dlbctl.replay.report import Summary
    from dlbctl.replay.run import Standing
    from dlbctl.replay.selection import Selection
    from dlbctl.replay.slo import Objective
    from dlbctl.replay.targets import Target
    from dlbctl.replay.trace import Row


@dataclass(frozen=True, slots=True)
class Options:
    """What `dlbctl replay` was asked for. pace: run seconds per second of the trace."""

    trace: Path
    targets: tuple[Target, ...]
    selection: Selection
    model: str | None = None
    pace: float = 1.0
    block_tokens: int = BLOCK_TOKENS
    endpoint: Endpoint = "chat"
    stream: bool = True
    max_output_tokens: int | None = None
    max_in_flight: int | None = None
    api_key: str | None = None
    connect_timeout_s: float = 10.0
    timeout_s: float = 600.0
    drain_timeout_s: float | None = None
    objective: Objective | None = None
    out: Path | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A run's summary, and whether it was interrupted."""

    summary: Summary
    interrupted: bool


def execute(options: Options, *, watch: Callable[[Standing], None], warn: Callable[[str], None]) -> Report:
    """Replay. `watch` is called about twice a second, `warn` with what the user should know at once.

    Raises ConfigError for the trace, UsageError, UnreachableError where no target answers, DlbctlError.
    """
    trace = read_trace(options.trace, block_tokens=options.block_tokens)
    rows = select(trace, options.selection)
    if not rows:
        raise UsageError(f"{options.trace}: none of its {trace.total} rows is left to send")
    tls = ssl.create_default_context() if any(t.scheme == "https" for t in options.targets) else None
    writer = _writer(options, rows, tls, warn)
    _allow_many_connections()
    with contextlib.ExitStack() as files:
        journal = files.enter_context(Journal(options.out, force=options.force)) if options.out else None
        tally = Tally(options.objective)
        run = Run(
            _plan(options, rows, writer, tls),
            tally,
            record=journal.record if journal else _keep_none,
            watch=watch,
        )
        started_at = datetime.now(UTC)
        _run_until_done(run)
        for row in run.unsent:
            trace.left_out.add("interrupted", row.line)
        summary = summarise(
            tally,
            trace.left_out,
            run.loop_lag.late_s,
            rows=trace.total,
            objective=options.objective,
            run={"started_at": started_at.isoformat(timespec="seconds")} | _described(options, writer),
        )
        if journal:
            journal.finish(summary)
    return Report(summary, run.stopped)


def _writer(
    options: Options, rows: tuple[Row, ...], tls: ssl.SSLContext | None, warn: Callable[[str], None]
) -> RequestWriter:
    up, down = reachable(options.targets, timeout_s=options.connect_timeout_s)
    for failure in down:
        warn(f"target not reachable: {failure}")
    default_model = None
    if options.model is None and any(row.model is None for row in rows):
        default_model = only_model(up[0], api_key=options.api_key, tls=tls, timeout_s=options.connect_timeout_s)
    return RequestWriter(
        PromptBuilder(options.block_tokens),
        run_id=os.urandom(4).hex(),
        default_model=default_model,
        forced_model=options.model,
        endpoint=options.endpoint,
        stream=options.stream,
        max_output_tokens=options.max_output_tokens,
        api_key=options.api_key,
    )


def _plan(options: Options, rows: tuple[Row, ...], writer: RequestWriter, tls: ssl.SSLContext | None) -> Plan:
    return Plan(
        rows,
        options.targets,
        writer,
        pace=options.pace,
        max_in_flight=options.max_in_flight,
        connect_timeout_s=options.connect_timeout_s,
        timeout_s=options.timeout_s,
        drain_timeout_s=options.drain_timeout_s,
        tls=tls,
    )


def _run_until_done(run: Run) -> None:
    import uvloop

    # The trace's rows are here to stay: without this every full collection walks them and stalls the loop.
    gc.collect()
    gc.freeze()
    try:
        uvloop.run(_with_signals(run))
    except* DlbctlError as group:
        raise group.exceptions[0] from None
    finally:
        gc.unfreeze()


async def _with_signals(run: Run) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # A second signal finds the default handler: whoever does not want to wait need not.
        _drop_handlers(loop)
        run.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await run.run()
    finally:
        _drop_handlers(loop)


def _drop_handlers(loop: asyncio.AbstractEventLoop) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_none(_: Outcome) -> None:
    """Without --out requests are summed up, and not kept."""


def _described(options: Options, writer: RequestWriter) -> dict[str, object]:
    return {
        "version": __version__,
        "run_id": writer.run_id,
        "trace": str(options.trace),
        "targets": [{"name": target.name, "url": target.url, "weight": target.weight} for target in options.targets],
        "model": writer.forced_model or writer.default_model,
        "endpoint": options.endpoint,
        "stream": options.stream,
        "pace": options.pace,
        "start_s": options.selection.start_s,
        "end_s": options.selection.end_s,
        "limit": options.selection.limit,
        "max_input": options.selection.max_input_tokens,
        "max_output": options.max_output_tokens,
        "max_concurrency": options.max_in_flight,
        "block_size": options.block_tokens,
    }
