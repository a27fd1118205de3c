"""Metrics as a scraper reads them: valid text, true figures, bounded series that go with what they are about."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dlbctl import __version__
from dlbctl.core.settings import EndpointSettings, TierSettings
from dlbctl.router.access_log import AccessLog
from dlbctl.router.tally import LATENCY_BOUNDS_S, MAX_ENDPOINTS, Histogram

from .live import Live, chain, client_of, leaf, on_loop, root, server, until
from .process import engine, leaf_file, running
from .scripted import Connection, answering, chunk, serving, sized
from .test_admin import admin_of
from .test_audit import lose, streaming
from .test_upstream_faults import EVENT, STREAM_HEAD
from .test_waiting import ask, gated
from .wire import chat, get

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
Labels = dict[str, str]


class Series(NamedTuple):
    """What was scraped, by name."""

    values: dict[str, list[tuple[Labels, float]]]

    def of(self, name: str, **labels: str) -> float:
        """The sum over the series with these labels."""
        return sum(value for found, value in self.values.get(name, []) if labels.items() <= found.items())

    def label(self, name: str, label: str) -> set[str]:
        return {labels[label] for labels, _ in self.values.get(name, [])}


def read(text: str) -> Series:
    """Parse strictly: each family is declared once, with help, and each series stands once."""
    values: dict[str, list[tuple[Labels, float]]] = {}
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.documentation
        assert family.type != "unknown"
        assert family.name.startswith(("dlbctl_", "process_"))
        for sample in family.samples:
            values.setdefault(sample.name, []).append((sample.labels, sample.value))
    for name, found in values.items():
        keys = [tuple(sorted(labels.items())) for labels, _ in found]
        assert len(set(keys)) == len(keys), name
    return Series(values)


@contextlib.asynccontextmanager
async def scraped(live: Live) -> AsyncIterator[httpx.AsyncClient]:
    async with admin_of(live) as asked:
        yield asked.client


async def scrape(client: httpx.AsyncClient) -> Series:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(answer.text)


@on_loop
async def test_requests_are_counted_by_endpoint_status_and_code() -> None:
    async with chain(answering(sized(b"{}"))) as (_, live, client), scraped(live) as scraper:
        for model in ("m", "m", "nobody's"):
            await client.ask(chat(model))
        await client.ask(get("/nowhere"))
        found = await scrape(scraper)
        name = "dlbctl_requests_total"
        assert found.of(name, endpoint="m", status="2xx", code="ok") == 2
        assert found.of(name, endpoint="other", status="4xx", code="unknown_model") == 1
        assert found.of(name, endpoint="", status="4xx", code="unknown_path") == 1
        assert found.of(name) == 4
        assert found.of("dlbctl_errors_total", code="unknown_model", by="client") == 1
        assert found.of("dlbctl_errors_total") == 2
        assert found.of("dlbctl_build_info", version=__version__, role="leaf", cell="c1") == 1
        for histogram in ("time_to_first_token", "request_duration", "router_overhead"):
            assert found.of(f"dlbctl_{histogram}_seconds_count", endpoint="m") == 2
            assert found.of(f"dlbctl_{histogram}_seconds_bucket", endpoint="m", le="+Inf") == 2
            assert 0 < found.of(f"dlbctl_{histogram}_seconds_sum", endpoint="m") < 2


@on_loop
async def test_errors_are_not_forgotten_with_the_endpoint_they_were_of() -> None:
    """A counter that goes back is one that began anew, to Prometheus: the rest of it would count twice."""
    bad = answering(sized(b"{}", status=b"400 Oh"))
    async with (
        serving(bad) as behind,
        leaf([server("s", behind.port, "m", "n")]) as live,
        scraped(live) as scraper,
        client_of(live) as client,
    ):
        for model in ("m", "n"):
            assert (await client.ask(chat(model))).status == 400
        assert (await scrape(scraper)).of("dlbctl_errors_total") == 2
        live.tier.targets_changed([server("s", behind.port, "n")])
        found = await scrape(scraper)
        assert found.label("dlbctl_requests_total", "endpoint") == {"n"}
        assert found.of("dlbctl_errors_total", code="upstream_4xx", by="upstream") == 2


@on_loop
async def test_times_are_those_of_the_answer() -> None:
    """Between what happened at its two ends; the head, which engines send at once, is no first token."""
    first, last = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD)
        await first.wait()
        await connection.send(chunk(EVENT))
        await last.wait()
        await connection.send(b"0\r\n\r\n")

    async with chain(script) as (_, live, client):
        clock = live.router.clock
        asked_s = clock()
        await client.send(chat())
        await client.head()
        first_s = clock()
        first.set()
        await client.reader.readuntil(EVENT + b"\r\n")
        seen_s = clock()
        last.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        over_s = clock()
        await live.settled()
        tally = live.router.ledger.tally.of("m")
        assert first_s - asked_s < tally.ttft_s.total + tally.overhead_s.total < 2 * (seen_s - asked_s)
        assert tally.overhead_s.total < first_s - asked_s
        assert tally.ttft_s.total < tally.duration_s.total < over_s - asked_s


def test_a_value_on_a_bound_is_within_it_and_one_above_all_is_counted() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 13.5)
    assert list(LATENCY_BOUNDS_S) == sorted(LATENCY_BOUNDS_S)


@on_loop
async def test_what_is_in_flight_is_shown_by_tier_target_and_endpoint() -> None:
    async with serving(streaming) as behind:
        cell = TierSettings("leaf", "eu", (server("s", behind.port, "m", "n"),), seed=1)
        async with root([], local=[cell]) as live, client_of(live) as client, scraped(live) as scraper:
            await client.send(chat())
            await client.reader.readuntil(EVENT)
            found = await scrape(scraper)
            name = "dlbctl_requests_in_flight"
            assert found.of(name, tier="root", cell="eu", server="", endpoint="m") == 1
            assert found.of(name, tier="leaf", cell="eu", server="s", endpoint="m") == 1
            assert found.of(name, endpoint="n") == 0
            assert found.of("dlbctl_target_up") == 2
            assert found.of("dlbctl_requests_open") == 1
            client.abort()
            await live.settled()
            assert (await scrape(scraper)).of(name) == 0


@on_loop
async def test_a_request_that_finds_no_room_is_shed_and_one_sent_elsewhere_is_a_retry() -> None:
    no = answering(sized(b"{}", status=b"503 Busy"))
    async with serving(streaming) as behind, serving(no) as one, serving(no) as two:
        servers = [server("s", behind.port, "m", slots=1), server("a", one.port, "n"), server("b", two.port, "n")]
        async with leaf(servers) as live, scraped(live) as scraper, client_of(live) as first, client_of(live) as other:
            await first.send(chat())
            await first.reader.readuntil(EVENT)
            for model in ("m", "n"):
                assert (await other.ask(chat(model))).status == 503
            found = await scrape(scraper)
            assert found.of("dlbctl_shed_total", tier="leaf", cell="c1", endpoint="m") == 1
            assert found.of("dlbctl_errors_total", code="all_servers_full", by="router") == 1
            assert found.of("dlbctl_retries_total", endpoint="n") == 1
            assert found.of("dlbctl_retries_total", endpoint="m") == 0


@on_loop
async def test_ejections_and_panic_are_shown() -> None:
    """Case 32: of two servers the one that fails is out; with the other down, it is used all the same."""
    bad = answering(sized(b"{}", status=b"500 Oh"))
    async with serving(bad) as behind, leaf([server("bad", behind.port), server("other", 1)]) as live:
        live.tier.address_changed(0.0, "other", "http://127.0.0.1:1", False)
        async with client_of(live) as client, scraped(live) as scraper:
            while not live.tier.targets["bad"].ejections:
                assert (await client.ask(chat())).status == 500
            found = await scrape(scraper)
            assert found.of("dlbctl_ejections_total", server="bad") == 1
            assert found.of("dlbctl_target_up", server="bad") == 0
            assert found.of("dlbctl_panic", endpoint="m") == 1
            live.tier.address_changed(0.0, "other", "http://127.0.0.1:1", True)
            assert (await scrape(scraper)).of("dlbctl_panic") == 0


@on_loop
async def test_the_queue_and_the_waiting_in_it_are_shown() -> None:
    async with gated() as (gate, _, live), scraped(live) as scraper:
        tasks = [await ask(live, f"r{n}", waiting=n) for n in range(3)]
        found = await scrape(scraper)
        assert (found.of("dlbctl_queue_depth", endpoint="m"), found.of("dlbctl_queued_total")) == (2, 2)
        gate.let(3)
        await asyncio.gather(*tasks)
        found = await scrape(scraper)
        assert (found.of("dlbctl_queue_depth"), found.of("dlbctl_queued_total")) == (0, 2)
        assert found.of("dlbctl_queue_wait_seconds_total", endpoint="m") > 0


@on_loop
async def test_drift_and_the_loops_lag_are_shown() -> None:
    async with serving(streaming) as behind, leaf([server("s", behind.port)]) as live, scraped(live) as scraper:
        task = asyncio.ensure_future(live.router.lag.run())
        async with client_of(live) as client:
            await client.send(chat())
            await client.reader.readuntil(EVENT)
            lose(live)
        live.router.audit.look()
        await until(lambda: sum(live.router.lag.late_s.counts) > 0)
        task.cancel()
        found = await scrape(scraper)
        assert found.of("dlbctl_audit_drift_total", tier="leaf", cell="c1") == 1
        assert found.of("dlbctl_event_loop_lag_seconds_count") >= 1


@on_loop
async def test_names_that_clients_choose_make_no_series() -> None:
    """Case 53."""
    async with chain(answering(sized(b"{}"))) as (_, live, client), scraped(live) as scraper:
        for number in range(300):
            await client.ask(chat(f"made-up-{number}"))
        found = await scrape(scraper)
        assert found.label("dlbctl_requests_total", "endpoint") == {"other"}
        assert found.of("dlbctl_requests_total", endpoint="other") == 300


@on_loop
async def test_a_server_of_very_many_models_makes_a_bounded_number_of_series() -> None:
    models = [f"m{number}" for number in range(MAX_ENDPOINTS + 20)]
    async with serving(answering(sized(b"{}"))) as behind, leaf([server("s", behind.port, *models)]) as live:
        async with client_of(live) as client:
            for model in models:
                assert (await client.ask(chat(model))).status == 200
        tallies = live.router.ledger.tally.endpoints
        assert len(tallies) == MAX_ENDPOINTS + 2
        assert tallies["other"].endings == {(2, "ok"): 20}


@on_loop
async def test_series_go_with_their_endpoint_and_target() -> None:
    async with serving(answering(sized(b"{}"))) as behind:
        kept, gone = server("kept", behind.port, "m"), server("gone", behind.port, "n")
        async with leaf([kept, gone]) as live, scraped(live) as scraper, client_of(live) as client:
            for model in ("m", "n"):
                await client.ask(chat(model))
            assert (await scrape(scraper)).label("dlbctl_requests_in_flight", "server") == {"kept", "gone"}
            live.tier.targets_changed([kept])
            found = await scrape(scraper)
            for name in ("requests_total", "request_duration_seconds_bucket", "retries_total", "queue_depth"):
                assert found.label(f"dlbctl_{name}", "endpoint") - {"", "other"} == {"m"}
            for name in ("requests_in_flight", "target_up", "ejections_total"):
                assert found.label(f"dlbctl_{name}", "server") == {"kept"}
            live.tier.endpoints_changed([EndpointSettings("n")])
            live.tier.endpoints_changed([])
            assert "n" not in (await scrape(scraper)).label("dlbctl_shed_total", "endpoint")


@on_loop
async def test_odd_names_are_escaped() -> None:
    odd = 'org/"quoted"\\ модель'
    async with leaf([server("s", 1, odd)]) as live, scraped(live) as scraper:
        assert (await scrape(scraper)).label("dlbctl_requests_in_flight", "endpoint") == {odd}


def told() -> dict[str, set[str]]:
    """The series of the document, with their labels."""
    rows = [line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    return {name.strip(" `"): set(filter(None, labels.strip().split(", "))) for _, name, labels, *_ in rows}


@on_loop
async def test_the_document_lists_every_series_with_its_labels(tmp_path: Path) -> None:
    async with chain(answering(sized(b"{}"))) as (_, live, client), scraped(live) as scraper:
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        await client.ask(chat("nobody's"))
        found = await scrape(scraper)
    shown: dict[str, set[str]] = {}
    for name, series in found.values.items():
        for found_labels, _ in series:
            family = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            shown.setdefault(family, set()).update(set(found_labels) - {"le"})
    assert {name: labels for name, labels in shown.items() if name.startswith("dlbctl_")} == told()


@on_loop
async def test_a_listener_for_scrapers_serves_metrics_and_nothing_else(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=0.0, metrics_listen="127.0.0.1:0")
        async with running("leaf", config, 2) as made_leaf:
            assert made_leaf.process.stdout is not None
            name, url = (await made_leaf.process.stdout.readline()).decode().split()
            assert name == "metrics"
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.get(url)
                assert read(answer.text).of("dlbctl_build_info") == 1
                assert (await client.get(url.replace("/metrics", "/v1/requests"))).status_code == 404
                assert (await client.delete(url)).status_code == 405
