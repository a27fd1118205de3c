"""An alarm of a mechanism: shown by `inspect` and metrics while it is on, logged when it begins and when it ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dlbctl.core import snapshot
from dlbctl.core.events import EndpointState, State
from dlbctl.core.mechanism import ROUND_S
from dlbctl.core.settings import EndpointSettings, FlowSettings, TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from dlbctl.router.router import Router

from .live import Live, on_loop
from .test_metrics import scrape, scraped

PERIOD_S = 1.0


def swinging_root() -> Tier:
    """A root whose policy moves shares, fast."""
    targets = tuple(TargetSettings(name, (f"http://{name}:1",)) for name in ("a", "b"))
    endpoint = EndpointSettings("m", "flow/rif", flow=FlowSettings(1.0))
    return Tier(TierSettings("root", "here", targets, (endpoint,), seed=3), "b00t")


def lived(tier: Tier, begins_s: float, until_s: float, *, swings: bool) -> None:
    """Rounds, while the cells are full in turn or not at all."""
    for number in range(round(begins_s / ROUND_S), round(until_s / ROUND_S)):
        now_s = number * ROUND_S
        first = (now_s / PERIOD_S) % 1.0 < 0.5
        for name, full in (("a", first), ("b", not first)):
            state = EndpointState(rif=4 if full and swings else 0, k=2.0)
            tier.state_reported(now_s, name, f"http://{name}:1", State(endpoints={"m": state}), 0.01)
        tier.timer_fired(now_s)


@on_loop
async def test_shares_that_swing_raise_an_alarm_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    tier = swinging_root()
    live = Live(Router(tier, {}, asyncio.get_running_loop()))
    alarms = live.router.alarms
    with caplog.at_level(logging.INFO, logger="dlbctl.router.alarms"):
        async with scraped(live) as scraper:
            lived(tier, 0.0, 8.0, swings=True)
            alarms.look()
            alarms.look()
            assert snapshot.endpoints(tier)[0].alarms == ("oscillation",)
            assert (await scrape(scraper)).of("dlbctl_endpoint_alarm", endpoint="m", alarm="oscillation") == 1
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "endpoint m at the root of here: oscillation: its shares swing" in caplog.text
            lived(tier, 8.0, 40.0, swings=False)
            alarms.look()
            alarms.look()
            assert snapshot.endpoints(tier)[0].alarms == ()
            assert (await scrape(scraper)).of("dlbctl_endpoint_alarm", endpoint="m") == 0
            assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
            assert caplog.messages[-1] == "endpoint m at the root of here: oscillation is over"
