"""Alarms of mechanisms, logged once when they begin and once when they end. Who asks is shown those that are on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from dlbctl.core.mechanism import ALARMS

if TYPE_CHECKING:
    from dlbctl.router.router import Router

PERIOD_S = 1.0

_LOG = logging.getLogger(__name__)


class Alarms:
    """Of one router. on: endpoint, tier and alarm of each."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.on: set[tuple[str, str, str]] = set()

    def __repr__(self) -> str:
        return f"<Alarms of {self._router!r}, {len(self.on)} on>"

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Log what has begun and what has ended since the last look."""
        on = {
            (endpoint.name, f"{tier.role} of {tier.settings.cell}", alarm)
            for tier in self._router.tiers
            for endpoint in tier.endpoints.values()
            for alarm in endpoint.mechanism.alarms()
        }
        for name, place, alarm in sorted(on - self.on):
            _LOG.warning("endpoint %s at the %s: %s: %s", name, place, alarm, ALARMS[alarm])
        for name, place, alarm in sorted(self.on - on):
            _LOG.info("endpoint %s at the %s: %s is over", name, place, alarm)
        self.on = on
