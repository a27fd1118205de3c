"""The accounting audit: once a second, what the tiers count against what is really held open.

A count that leaks makes a target look busy for good and a queue shorter than it is; that has happened to every
router of this kind. So it is looked for, put right, logged and counted, whatever its cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.tier import Tier
    from dlbctl.router.router import Router

PERIOD_S = 1.0

_LOG = logging.getLogger(__name__)


class Audit:
    """Of one router. drift: by role and cell of a tier, how many leaked exchanges and wrong counts were found."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.drift: Counter[tuple[str, str]] = Counter()

    def __repr__(self) -> str:
        return f"<Audit of {self._router!r}, {self.drift.total()} found>"

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Compare now: between two callbacks of the loop the two agree exactly."""
        held: dict[Tier, list[int]] = {tier: [] for tier in self._router.tiers}
        for relay in self._router.ledger.open.values():
            for tier, number in relay.held():
                # A tier that a reload took away ends what it has under way, and counts that truly too.
                held.setdefault(tier, []).append(number)
        for exploring in self._router.background.open:
            held.setdefault(exploring.tier, []).append(exploring.exchange.number)
        now_s = self._router.clock()
        for tier, numbers in held.items():
            found = tier.audited(now_s, tuple(numbers))
            for number in found.leaked:
                _LOG.error("audit: %r: exchange %d was counted and nobody served it; taken off", tier, number)
            for words in found.counts:
                _LOG.error("audit: %r: miscounted and put right: %s", tier, words)
            self.drift[tier.role, tier.settings.cell] += len(found.leaked) + len(found.counts)
