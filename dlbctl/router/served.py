"""Cells that this process serves itself: a leaf's own, and those of a root whose file lists their servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from dlbctl.core import snapshot
from dlbctl.core.errors import ConfigError
from dlbctl.core.snapshot import ServerRow
from dlbctl.router.discovery import Discovery
from dlbctl.router.eventlog import EventLog, tier_of
from dlbctl.router.pace import Pace
from dlbctl.router.probe import PING_S
from dlbctl.router.roster import Roster

if TYPE_CHECKING:
    from dlbctl.core.settings import TargetSettings, TierSettings
    from dlbctl.core.tier import Tier
    from dlbctl.router.router import Router


class ServedCell:
    """A leaf tier, its servers as the file and an operator have them, and who asks these what they serve."""

    def __init__(self, tier: Tier, log: EventLog | None, router: Router) -> None:
        self.tier = tier
        self.roster = Roster(tier.settings.targets)
        self._log = log
        self._discovery = Discovery(tier, router.clock, lambda: router.changed())

    def __repr__(self) -> str:
        return f"<ServedCell {self.tier.settings.cell} {self.roster!r}>"

    async def run(self) -> None:
        """Look after the servers until cancelled."""
        async with asyncio.TaskGroup() as work:
            work.create_task(self._discovery.run())
            if self._log is not None:
                work.create_task(self._log.run())

    def read(self, settings: TierSettings) -> None:
        """Take over what the file says now."""
        self.roster.read(settings.targets)
        self.tier.settings_changed(settings)
        self.tier.endpoints_changed(settings.endpoints)
        self.follow()

    def follow(self) -> None:
        """Bring tier and discovery up to date with the roster."""
        self.tier.targets_changed(self.roster.servers)
        self._discovery.follow()

    def servers(self, now_s: float) -> list[ServerRow]:
        """Its servers as they are, with those that an operator removed."""
        rows = snapshot.servers(self.tier, now_s)
        for row in rows:
            if row.address in self.roster.added:
                row.live = "added"
        return rows + [self._removed(server) for server in self.roster.removed.values()]

    def _removed(self, server: TargetSettings) -> ServerRow:
        (address,) = server.addresses
        return ServerRow(
            cell=self.tier.settings.cell,
            server=server.name,
            address=address,
            up=False,
            state="removed",
            models=(),
            in_flight=sum(exchange.address == address for exchange in self.tier.exchanges.values()),
            slots=server.slots,
            weight=server.weight,
            work_s=0.0,
            requests=0.0,
            error_rate=None,
            live="removed",
        )

    def retire(self) -> None:
        """The cell is served no more: what is under way ends, nothing is tried again."""
        self.tier.targets_changed(())
        self.close()

    def close(self) -> None:
        """Write the event log to its end."""
        if self._log is not None:
            self._log.close()


class LocalCells:
    """The cells that a root serves from its own process. They come, go and change with its file."""

    def __init__(self, router: Router, event_log: str) -> None:
        self.cells: dict[str, ServedCell] = {}
        self._router = router
        self._event_log = event_log
        self._pace: Pace | None = None
        self._work: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<LocalCells {', '.join(self.cells)}>"

    async def run(self) -> None:
        """Look after every cell until cancelled."""
        async with asyncio.TaskGroup() as self._work:
            for address in self.cells:
                self._start(address)
            while True:
                self._router.tell_local()
                await asyncio.sleep(PING_S)

    def prepare(self, wanted: Mapping[str, TierSettings]) -> dict[str, ServedCell]:
        """Make the cells that are new among those wanted, by address. ConfigError when an event log cannot be made."""
        made: dict[str, ServedCell] = {}
        router = self._router
        try:
            for address, settings in wanted.items():
                if address not in self.cells:
                    path = self._event_log and f"{self._event_log}.{quote(settings.cell, safe='')}"
                    tier, log = tier_of(settings, router.tier.boot, path)
                    made[address] = ServedCell(tier, log, router)
        except ConfigError:
            for cell in made.values():
                cell.close()
            raise
        return made

    def read(self, wanted: Mapping[str, TierSettings], made: dict[str, ServedCell], interval_s: float) -> None:
        """Take over the cells wanted, the new ones as prepared; the root tier must no longer send to the others.

        interval_s: least time between two reports to the root tier.
        """
        gone = [self._stop(address) for address in list(self.cells) if address not in wanted]
        for address, cell in self.cells.items():
            cell.read(wanted[address])
        self.cells |= made
        self._router.local = {address: cell.tier for address, cell in self.cells.items()}
        for address in made:
            self._start(address)
        self._report_every(interval_s)
        for cell in gone:
            self._router.release(cell.tier)

    def close(self) -> None:
        """Stop reporting, and write the event logs to their end."""
        if self._pace is not None:
            self._pace.stop()
        for cell in self.cells.values():
            cell.close()

    def _start(self, address: str) -> None:
        if self._work is not None:
            self._tasks[address] = self._work.create_task(self.cells[address].run())

    def _stop(self, address: str) -> ServedCell:
        if address in self._tasks:
            self._tasks.pop(address).cancel()
        cell = self.cells.pop(address)
        cell.retire()
        return cell

    def _report_every(self, interval_s: float) -> None:
        """Report soon after each change, while there is a cell to report."""
        if self._pace is not None:
            self._pace.stop()
        if self.cells:
            self._pace = Pace(self._router.loop, self._router.report_local, interval_s)
            self._router.changed = self._pace.changed
