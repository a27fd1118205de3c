"""Counts of the requests that are over: integers and fixed buckets, made into metrics only when they are asked for."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from dlbctl.router.reasons import OK

if TYPE_CHECKING:
    from dlbctl.core.tier import Tier
    from dlbctl.router.record import Record

# Series must stay bounded whatever servers and clients call their models (sglang#2093, litellm#12159).
MAX_ENDPOINTS = 100
OTHER = "other"

# Upper bounds, from a token's time to the longest answers; and from a routing decision to a connection that hangs.
LATENCY_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
OVERHEAD_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Histogram:
    """Counts by fixed upper bounds, one more for what is above them all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {sum(self.counts)}, {self.total:g} in all>"

    def add(self, value: float) -> None:
        """Count a value; one that equals a bound is within it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class EndpointTally:
    """What became of one endpoint's requests. endings: by class of status (0: nothing was sent) and reason code.

    url: that of the last that ended well, as its client wrote it.
    """

    url = b""

    def __init__(self) -> None:
        self.endings: dict[tuple[int, str], int] = {}
        self.ttft_s = Histogram(LATENCY_BOUNDS_S)
        self.duration_s = Histogram(LATENCY_BOUNDS_S)
        self.overhead_s = Histogram(OVERHEAD_BOUNDS_S)

    def __repr__(self) -> str:
        return f"<EndpointTally of {sum(self.endings.values())}>"

    def count(self, record: Record, now_s: float, status: int, code: str) -> None:
        """A request is over."""
        ending = (status // 100, code)
        self.endings[ending] = self.endings.get(ending, 0) + 1
        received_s = record.request.received_s
        overhead_s = record.overhead_s()
        if overhead_s is not None:
            self.overhead_s.add(overhead_s)
        if record.begun_s and status < 400:
            self.ttft_s.add(record.begun_s - received_s)
        if code == OK:
            self.duration_s.add(now_s - received_s)
            self.url = record.request.url


class Tally:
    """The counts of a router, by endpoint: one that is served, "" for requests that named none, or `other`.

    errors: of all endpoints, gone ones too, by reason code: a sum of what comes and goes would go back.
    """

    def __init__(self, tier: Tier) -> None:
        self.endpoints = {"": EndpointTally(), OTHER: EndpointTally()}
        self.errors: dict[str, int] = {}
        self._tier = tier

    def __repr__(self) -> str:
        return f"<Tally of {len(self.endpoints)} endpoints>"

    def count(self, record: Record, now_s: float, status: int, code: str) -> None:
        """A request is over."""
        self.of(record.endpoint).count(record, now_s, status, code)
        if code != OK:
            self.errors[code] = self.errors.get(code, 0) + 1

    def of(self, endpoint: str) -> EndpointTally:
        """Where this endpoint's requests are counted."""
        tally = self.endpoints.get(endpoint)
        return self._begin(endpoint) if tally is None else tally

    def forget_the_gone(self) -> None:
        """Drop the counts of endpoints that are not served any more."""
        for name in list(self.endpoints):
            if name and name != OTHER and not self._served(name):
                del self.endpoints[name]

    def _begin(self, endpoint: str) -> EndpointTally:
        if not self._served(endpoint) or len(self.endpoints) >= MAX_ENDPOINTS + 2:
            return self.endpoints[OTHER]
        tally = self.endpoints[endpoint] = EndpointTally()
        return tally

    def _served(self, name: str) -> bool:
        endpoint = self._tier.endpoints.get(name)
        return endpoint is not None and (endpoint.configured or bool(endpoint.candidates))
