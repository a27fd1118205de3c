"""`dlbctl engine`: inference engines without a GPU, OpenAI-compatible."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from dlbctl.commands import output
from dlbctl.core.errors import UsageError

if TYPE_CHECKING:
    from dlbctl.engine.process import Summary
    from dlbctl.engine.profile import Profile


class Flavor(enum.StrEnum):
    """Whose metric names to use."""

    VLLM = "vllm"
    SGLANG = "sglang"


def engine(
    profile: str = typer.Option("l40s", help="Built-in profile (h100, l40s, laptop) or a TOML file."),
    count: int = typer.Option(1, min=1, help="Engines in this process, one port each."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="First port; 0 takes free ones."),
    model: str = typer.Option("embedded", help="Name of the model served."),
    flavor: Annotated[Flavor, typer.Option(help="Whose metric names /metrics shows.")] = Flavor.VLLM,
    time_factor: float = typer.Option(1.0, min=0.001, help="Everything so many times faster."),
    stream_interval: int = typer.Option(1, min=1, help="Tokens in one event of a stream."),
    seed: int = typer.Option(0, help="Seed of answer lengths and faults."),
    queue_limit: int = typer.Option(256, min=0, help="Requests that may wait; more are answered 503."),
    max_num_seqs: int | None = typer.Option(None, min=1, help="Batch size, in place of the profile's."),
    error_rate: float = typer.Option(0.0, min=0.0, max=1.0, help="Fault: share of requests answered 500."),
    hang_rate: float = typer.Option(0.0, min=0.0, max=1.0, help="Fault: share of requests never answered."),
    crash_after: int = typer.Option(0, min=0, help="Fault: die at the request after this many."),
    slowdown: float = typer.Option(1.0, min=0.001, help="Fault: every step takes so many times longer."),
    json: bool = typer.Option(False, "--json", help="Print the addresses as one JSON document."),
) -> None:
    """Run embedded inference engines: OpenAI-compatible servers over a model of a GPU's timing.

    Prints the URL of each engine, then serves until SIGTERM or SIGINT. Faults can be changed live:
    POST /debug/faults with any of error_rate, hang_rate, slowdown, down, crash_after.
    """
    import uvloop

    from dlbctl.engine.faults import Faults
    from dlbctl.engine.process import address, bind, serve
    from dlbctl.engine.server import EngineOptions
    from dlbctl.fleet.lifeline import watch_lifeline

    faults = Faults(error_rate=error_rate, hang_rate=hang_rate, crash_after=crash_after, slowdown=slowdown)
    options = EngineOptions(
        model=model,
        flavor=flavor.value,
        time_factor=time_factor,
        stream_interval=stream_interval,
        queue_limit=queue_limit,
        seed=seed,
        faults=faults,
    )
    watch_lifeline()
    if port and port + count - 1 > 65535:
        raise UsageError(f"--port {port} --count {count}: there is no port above 65535")
    loaded = _profile(profile, max_num_seqs)
    sockets = bind(host, port, count)
    urls = [address(sock) for sock in sockets]
    summary = uvloop.run(serve(loaded, options, sockets, lambda: _announce(urls, json)))
    _report(summary)
    if summary.crashed:
        raise typer.Exit(1)


def _profile(name_or_file: str, max_num_seqs: int | None) -> Profile:
    from dlbctl.engine.profile import adjusted, load_profile

    loaded = load_profile(name_or_file)
    return loaded if max_num_seqs is None else adjusted(loaded, max_num_seqs=max_num_seqs)


def _announce(urls: list[str], json: bool) -> None:
    if json:
        output.show_json({"engines": urls})
    else:
        output.show(*urls)


def _report(summary: Summary) -> None:
    from dlbctl.engine.lag import INVALID_ABOVE_S

    output.note(
        f"dlbctl engine: {summary.requests} requests, {summary.finished} finished, "
        f"{summary.aborted} aborted, {summary.output_tokens} tokens; "
        f"event loop lag p99 {summary.lag_p99_s * 1000:.1f} ms"
    )
    if summary.lag_p99_s > INVALID_ABOVE_S:
        output.note(
            f"  this run is invalid as a measurement: above {INVALID_ABOVE_S * 1000:.0f} ms the machine, "
            "not the engine model, set the pace; use fewer streams or a longer --stream-interval"
        )
