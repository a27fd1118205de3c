"""What a root tells each leaf, once a second: what a leaf cannot see of the fleet from where it stands.

Roots do not talk to one another and leaves not to leaves of other cells, so it travels with the ping. Fields that a
reader does not know are left out by it, and those that a writer does not send have their defaults: a leaf and a root of
neighbouring versions understand each other.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dlbctl.core.curve import Belief

# Of how many endpoints one ping tells at most: those that are most asked for.
MAX_ENDPOINTS = 100
MAX_BYTES = 256 * 1024
MAX_ROOTS = 64
# A root tells once a second; what it told longer ago is no longer so.
FRESH_S = 5.0


class EndpointNews(Struct, frozen=True, omit_defaults=True):
    """Of one endpoint. rate_rps: requests for it that came to this root of late, whatever cell they went to.

    prior: what other cells with the same hardware say of the leaf's latency curve, where enough have one.
    """

    rate_rps: Annotated[float, Meta(ge=0.0)] = 0.0
    prior: Belief | None = None


class News(Struct, frozen=True, omit_defaults=True):
    """From one root, by its boot id, of the endpoints that the leaf reports."""

    root: str = ""
    endpoints: dict[str, EndpointNews] = {}


_DECODER = msgspec.json.Decoder(News)


def read_news(body: bytes) -> News:
    """The news in the body of a ping; none in one that cannot be read, whose distance counts all the same."""
    if not 0 < len(body) <= MAX_BYTES:
        return News()
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return News()


class Heard:
    """What the roots have told a leaf lately."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, News]] = {}  # when, by root; the last that told is last

    def __repr__(self) -> str:
        return f"<Heard of {len(self._told)} roots>"

    def tell(self, now_s: float, news: News) -> None:
        """A root told this."""
        self._told.pop(news.root, None)
        self._told[news.root] = (now_s, news)
        if len(self._told) > MAX_ROOTS:
            del self._told[next(iter(self._told))]

    def of(self, now_s: float, endpoint: str) -> list[EndpointNews]:
        """What every root that is still there told of an endpoint."""
        return [
            news.endpoints[endpoint]
            for told_s, news in self._told.values()
            if now_s - told_s <= FRESH_S and endpoint in news.endpoints
        ]

    def prior(self, now_s: float, endpoint: str) -> Belief | None:
        """What the root that was heard of last knows of curves such as this leaf's."""
        told = [news.prior for news in self.of(now_s, endpoint) if news.prior is not None]
        return told[-1] if told else None

    def rate_rps(self, now_s: float, endpoint: str) -> float:
        """How many requests a second come to all roots together."""
        return sum((news.rate_rps for news in self.of(now_s, endpoint)), 0.0)
