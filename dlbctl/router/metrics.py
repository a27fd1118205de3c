"""Prometheus metrics, made from the router's own counts when they are asked for and at no other time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dlbctl import __version__
from dlbctl.core.health import Standing
from dlbctl.core.mechanism import ALARMS
from dlbctl.router.reasons import REASONS
from dlbctl.router.tally import EndpointTally, Histogram, Tally

if TYPE_CHECKING:
    from dlbctl.core.tier import Tier
    from dlbctl.router.router import Router

# The format that every scraper reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Of one router. Its own series begin with `dlbctl_`; beside them stand the usual ones of a process."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._process = ProcessCollector(registry=None)

    def __repr__(self) -> str:
        return f"<Metrics of {self._router!r}>"

    def app(self) -> Starlette:
        """An application that serves /metrics alone."""
        return Starlette(routes=[Route("/metrics", self.serve)])

    async def serve(self, request: Request) -> Response:  # noqa: ARG002 - Starlette's signature
        """Answer a scrape. Counts are read at once, so that they fit each other; a thread makes them text."""
        families = [*self.collect(), *self._process.collect()]
        return Response(await asyncio.to_thread(generate_latest, _Collected(families)), media_type=CONTENT_TYPE)

    def collect(self) -> Iterator[Metric]:
        """Every family there is."""
        yield self._build()
        tally = self._router.ledger.tally
        tally.forget_the_gone()
        yield from _endings(tally)
        yield from _times(tally.endpoints)
        yield from _targets(self._router.tiers)
        yield from _decisions(self._router.tiers)
        yield from self._own_work()

    def _build(self) -> Metric:
        tier = self._router.tier
        family = GaugeMetricFamily(
            "dlbctl_build_info", "Which router this is; always 1.", labels=["version", "role", "cell"]
        )
        family.add_metric([__version__, tier.role, tier.settings.cell], 1)
        return family

    def _own_work(self) -> Iterator[Metric]:
        router = self._router
        yield GaugeMetricFamily("dlbctl_requests_open", "Requests under way.", value=len(router.ledger.open))
        drift = CounterMetricFamily(
            "dlbctl_audit_drift", "Leaked or wrong counts that the audit found and put right.", labels=["tier", "cell"]
        )
        for tier in router.tiers:
            place = (tier.role, tier.settings.cell)
            drift.add_metric(place, router.audit.drift[place])
        yield drift
        lag = HistogramMetricFamily(
            "dlbctl_event_loop_lag_seconds", "How late the event loop runs, sampled four times a second.", labels=[]
        )
        _add(lag, [], router.lag.late_s)
        yield lag
        log = router.ledger.access_log
        if log is not None:
            yield CounterMetricFamily(
                "dlbctl_access_log_dropped_lines", "Lines of the access log that were lost.", value=log.dropped
            )


class _Collected(Collector):
    """Families that have been collected already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _endings(tally: Tally) -> Iterator[Metric]:
    """How requests ended."""
    requests = CounterMetricFamily("dlbctl_requests", "Requests that are over.", labels=["endpoint", "status", "code"])
    errors = CounterMetricFamily("dlbctl_errors", "Requests that did not end well.", labels=["code", "by"])
    for endpoint, counted in tally.endpoints.items():
        for (status, code), count in counted.endings.items():
            requests.add_metric([endpoint, f"{status}xx" if status else "none", code], count)
    for code, count in tally.errors.items():
        errors.add_metric([code, REASONS[code].by], count)
    yield from (requests, errors)


def _times(tallies: dict[str, EndpointTally]) -> Iterator[Metric]:
    """How long requests took."""
    described: list[tuple[str, str, Callable[[EndpointTally], Histogram]]] = [
        (
            "dlbctl_time_to_first_token_seconds",
            "From a request being whole to the first byte of its answer's body.",
            lambda tally: tally.ttft_s,
        ),
        (
            "dlbctl_request_duration_seconds",
            "From a request being whole to the end of its answer, of those that ended well.",
            lambda tally: tally.duration_s,
        ),
        (
            "dlbctl_router_overhead_seconds",
            "From a request being whole to its being written to a server, less its wait for room, if it was sent once.",
            lambda tally: tally.overhead_s,
        ),
    ]
    for name, words, chosen in described:
        family = HistogramMetricFamily(name, words, labels=["endpoint"])
        for endpoint, tally in tallies.items():
            _add(family, [endpoint], chosen(tally))
        yield family


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.total)


def _place(tier: Tier, target: str) -> list[str]:
    """Labels of a target: a root's are cells, a leaf's are servers of its own cell."""
    return [tier.role, target, ""] if tier.role == "root" else [tier.role, tier.settings.cell, target]


def _targets(tiers: Iterable[Tier]) -> Iterator[Metric]:
    """How targets fare."""
    labels = ["tier", "cell", "server"]
    in_flight = GaugeMetricFamily(
        "dlbctl_requests_in_flight", "Requests at a target, sent by this router.", labels=[*labels, "endpoint"]
    )
    up = GaugeMetricFamily("dlbctl_target_up", "Whether a target can be chosen, 1 or 0.", labels=labels)
    ejections = CounterMetricFamily("dlbctl_ejections", "Times a target was ejected.", labels=labels)
    for tier in tiers:
        for target in tier.targets.values():
            place = _place(tier, target.name)
            up.add_metric(place, target.up and target.health.standing is not Standing.OUT)
            ejections.add_metric(place, target.ejections)
            for candidate in target.candidates:
                in_flight.add_metric([*place, candidate.endpoint.name], candidate.in_flight)
    yield from (in_flight, up, ejections)


def _decisions(tiers: Iterable[Tier]) -> Iterator[Metric]:
    """What tiers decided for each endpoint that is served."""
    labels = ["tier", "cell", "endpoint"]
    retries = CounterMetricFamily("dlbctl_retries", "Requests sent to another target.", labels=labels)
    denied = CounterMetricFamily("dlbctl_retries_denied", "Retries that the budget did not allow.", labels=labels)
    shed = CounterMetricFamily("dlbctl_shed", "Requests turned away, for want of room or target.", labels=labels)
    queued = CounterMetricFamily("dlbctl_queued", "Requests that had to wait for room.", labels=labels)
    waited = CounterMetricFamily("dlbctl_queue_wait_seconds", "Time that requests waited till sent.", labels=labels)
    explored = CounterMetricFamily(
        "dlbctl_background_probes", "Requests that a leaf has made by itself.", labels=labels
    )
    depth = GaugeMetricFamily("dlbctl_queue_depth", "Requests that wait for room now.", labels=labels)
    panic = GaugeMetricFamily(
        "dlbctl_panic", "1 while every target that answers is ejected, so that all of them are used.", labels=labels
    )
    alarms = GaugeMetricFamily(
        "dlbctl_endpoint_alarm", "1 while an alarm is on, for instance that shares swing.", labels=[*labels, "alarm"]
    )
    families: tuple[CounterMetricFamily | GaugeMetricFamily, ...] = (
        retries,
        denied,
        shed,
        queued,
        waited,
        explored,
        depth,
        panic,
    )
    for tier in tiers:
        for name, endpoint in tier.endpoints.items():
            if not (endpoint.configured or endpoint.candidates):
                continue
            place = [tier.role, tier.settings.cell, name]
            figures = (
                *(endpoint.retried, endpoint.retries_denied, endpoint.refused, endpoint.queued, endpoint.waited_s),
                *(endpoint.explored, len(endpoint.queue), endpoint.panic),
            )
            for family, figure in zip(families, figures, strict=True):
                family.add_metric(place, figure)
            on = endpoint.mechanism.alarms()
            for alarm in ALARMS:
                alarms.add_metric([*place, alarm], alarm in on)
    yield from (*families, alarms)
