"""What roots tell leaves with their pings, and what a leaf makes of it."""

from __future__ import annotations

import msgspec
import pytest

from dlbctl.core.events import AdminState, Arrival, EndpointState, State
from dlbctl.core.news import FRESH_S, MAX_BYTES, MAX_ENDPOINTS, MAX_ROOTS, EndpointNews, Heard, News, read_news
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.core.tier import Tier

EU = ("http://eu:1", "http://eu:2")


def root(**served: tuple[str, ...]) -> Tier:
    """A root in front of the two leaves of a cell, and what each reports."""
    tier = Tier(TierSettings("root", "us", (TargetSettings("eu", EU),)), "r00t")
    for address, models in zip(EU, served.values(), strict=True):
        state = State(endpoints={model: EndpointState(k=1.0) for model in models})
        tier.state_reported(0.0, "eu", address, state, 0.01)
    return tier


def ask(tier: Tier, model: str, rps: float, *, until_s: float) -> None:
    for number in range(round(rps * until_s)):
        tier.arrived(number / rps, Arrival("", model))


def test_a_root_tells_a_leaf_how_much_is_asked_of_it_in_all_of_what_that_leaf_reports() -> None:
    tier = root(first=("m",), second=("m", "n"))
    ask(tier, "m", 4.0, until_s=60.0)
    ask(tier, "n", 1.0, until_s=60.0)
    news = tier.news(60.0, "eu", EU[1])
    assert news.root == "r00t"
    # A sum over the past instead of an integral: off by half an event.
    assert {name: told.rate_rps for name, told in news.endpoints.items()} == pytest.approx(
        {"m": 4.0, "n": 1.0}, abs=0.1
    )
    assert tier.news(60.0, "eu", EU[0]).endpoints.keys() == {"m"}
    assert tier.news(60.0, "eu", "http://gone:1") == tier.news(60.0, "gone", EU[0]) == News("r00t")


def test_of_a_leaf_that_was_taken_out_nothing_is_wanted() -> None:
    """Else it would try by itself what nobody sends it: background probes to a place that is being worked on."""
    tier = root(first=("m",), second=("m",))
    ask(tier, "m", 4.0, until_s=60.0)
    tier.admin_set(60.0, "eu", EU[0], AdminState.DRAIN)
    assert tier.news(60.0, "eu", EU[0]).endpoints["m"].rate_rps == 0.0
    assert tier.news(60.0, "eu", EU[1]).endpoints["m"].rate_rps > 3.0
    tier.admin_set(60.0, "eu", "", AdminState.DRAIN)
    assert tier.news(60.0, "eu", EU[1]).endpoints["m"].rate_rps == 0.0
    tier.admin_set(60.0, "eu", "", AdminState.READY)
    assert tier.news(60.0, "eu", EU[1]).endpoints["m"].rate_rps > 3.0


def test_telling_changes_nothing() -> None:
    tier = root(first=("m",), second=("m",))
    ask(tier, "m", 3.0, until_s=10.0)
    assert tier.news(10.0, "eu", EU[0]) == tier.news(10.0, "eu", EU[0])


def test_of_too_many_endpoints_those_most_asked_for_are_told() -> None:
    names = tuple(f"m{number:03}" for number in range(MAX_ENDPOINTS + 50))
    tier = root(first=names, second=())
    for name in names[30:]:
        tier.arrived(1.0, Arrival("", name))
    told = tier.news(1.0, "eu", EU[0]).endpoints
    assert len(told) == MAX_ENDPOINTS
    assert told.keys() <= set(names[30:])
    assert len(msgspec.json.encode(tier.news(1.0, "eu", EU[0]))) < MAX_BYTES


def test_a_leaf_adds_up_what_its_roots_tell_and_believes_it_for_a_while() -> None:
    heard = Heard()
    heard.tell(10.0, News("a", {"m": EndpointNews(2.0)}))
    heard.tell(12.0, News("b", {"m": EndpointNews(0.5), "n": EndpointNews(7.0)}))
    assert heard.rate_rps(12.0, "m") == 2.5
    assert heard.rate_rps(10.0 + FRESH_S, "m") == 2.5
    assert heard.rate_rps(10.1 + FRESH_S, "m") == 0.5
    heard.tell(12.5, News("b", {"m": EndpointNews(1.0)}))  # in place of what it told before
    assert (heard.rate_rps(13.0, "m"), heard.rate_rps(13.0, "n")) == (3.0, 0.0)


def test_roots_that_are_gone_are_forgotten() -> None:
    heard = Heard()
    for number in range(2 * MAX_ROOTS):
        heard.tell(1.0, News(f"root{number}", {"m": EndpointNews(1.0)}))
    assert heard.rate_rps(1.0, "m") == MAX_ROOTS


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"pong",
        b"[]",
        b'{"endpoints":{"m":{"rate_rps":-1}}}',
        b'{"endpoints":{"m":{"rate_rps":1e999}}}',
        b'{"endpoints":{"m":{"rate_rps":NaN}}}',
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"root":"' + b"x" * MAX_BYTES + b'"}',
    ],
)
def test_a_ping_without_news_that_can_be_read_has_none(body: bytes) -> None:
    assert read_news(body) == News()


def test_what_a_later_version_adds_is_left_out() -> None:
    told = b'{"root":"r","hurry":1,"endpoints":{"m":{"rate_rps":2,"more":{"of":"it"}}}}'
    assert read_news(told) == News("r", {"m": EndpointNews(2.0)})
    assert read_news(msgspec.json.encode(News("r", {"m": EndpointNews()}))) == News("r", {"m": EndpointNews()})
