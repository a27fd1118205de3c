"""What an operator changes in a running router. Every change is told in the log: what, old and new, and by whom."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from dlbctl.core.errors import ConfigError, DlbctlError
from dlbctl.core.events import AdminState
from dlbctl.core.snapshot import DrainRow
from dlbctl.core.target import Target
from dlbctl.core.tier import Tier
from dlbctl.router.config import LOCAL_PREFIX
from dlbctl.router.upstream import Address

if TYPE_CHECKING:
    from dlbctl.core.snapshot import ServerRow
    from dlbctl.router.router import Router
    from dlbctl.router.sections import ServerSection
    from dlbctl.router.served import ServedCell

_LOG = logging.getLogger(__name__)


class Place(NamedTuple):
    """What an operator means by a cell, a leaf or a server. address: empty for the whole target."""

    tier: Tier
    target: Target
    address: str

    def __str__(self) -> str:
        if self.tier.role == "leaf":
            return f"server {self.target.name} of cell {self.tier.settings.cell}"
        return f"leaf {self.address}" if self.address else f"cell {self.target.name}"

    @property
    def names(self) -> set[str]:
        """What it may be called: a server goes by its name or its address, as its one address is all of it."""
        if self.address:
            return {self.address}
        return {self.target.name, *(self.target.addresses if self.tier.role == "leaf" else ())}

    @property
    def addresses(self) -> frozenset[str]:
        """All that it comprises."""
        return frozenset((self.address,) if self.address else self.target.addresses)

    @property
    def drained(self) -> bool:
        """Whether nothing of it takes new requests, by an operator's will."""
        return self.target.drained >= self.addresses

    def row(self) -> DrainRow:
        """How it stands."""
        addresses = self.addresses
        in_flight = sum(exchange.address in addresses for exchange in self.tier.exchanges.values())
        return DrainRow(str(self), self.drained, in_flight)


class Control:
    """The changes there are.

    served: the cells of this process. reload: reads the file again. by: who asks for a change, for the log.
    """

    def __init__(
        self,
        router: Router,
        served: Callable[[], Iterable[ServedCell]],
        reload: Callable[[], Awaitable[dict[str, str]]],
    ) -> None:
        self._router = router
        self._served = served
        self._reload = reload
        self._reloading: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Control of {self._router!r}>"

    @property
    def served(self) -> list[ServedCell]:
        """The cells that this process serves."""
        return list(self._served())

    async def reload(self, by: str) -> dict[str, str]:
        """Take over the file as it is now; what has changed, by key. ConfigError says why nothing has."""
        try:
            changed = await self._reload()
        except ConfigError as error:
            _LOG.error("reload by %s: refused: %s", by, str(error).replace("\n", ";"))
            raise
        told = "; ".join(f"{key}: {how}" for key, how in changed.items())
        _LOG.info("reload by %s: %s", by, told or "the file says nothing new")
        return changed

    def hung_up(self) -> None:
        """SIGHUP: a reload whose outcome the log alone tells."""
        task = asyncio.ensure_future(self._hung_up())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _hung_up(self) -> None:
        with contextlib.suppress(ConfigError):
            await self.reload("SIGHUP")

    def set_policy(self, endpoint: str, policy: str, by: str) -> None:
        """Switch an endpoint's policy, or with an empty one go back to the configured. ConfigError when it is none."""
        tier = self._router.tier
        known = tier.endpoints.get(endpoint)
        old = known.policy if known else ""
        tier.policy_set(self._router.clock(), endpoint, policy)
        _LOG.info("policy of %s by %s: %s -> %s", endpoint, by, old, tier.endpoints[endpoint].policy)

    def drain(self, name: str, state: AdminState, by: str) -> DrainRow:
        """Take a cell, a leaf or a server out, or put it back. DlbctlError when that is none or several."""
        place = _find(name, self._tiers())
        old = place.drained
        place.tier.admin_set(self._router.clock(), place.target.name, place.address, state)
        if place.drained and state is AdminState.READY:
            raise DlbctlError(f"the whole cell {place.target.name} is drained", hint=f"undrain {place.target.name}")
        self._router.changed()
        _LOG.info("%s by %s: %s -> %s", place, by, _state(old), _state(place.drained))
        return place.row()

    def drained(self, name: str) -> DrainRow:
        """How a cell, a leaf or a server stands."""
        return _find(name, self._tiers()).row()

    def add_server(self, server: ServerSection, cell: str, by: str) -> list[ServerRow]:
        """Add a server to a cell of this process, until a restart. DlbctlError when that cannot be."""
        server.check("server")
        served = self._cell(cell)
        target = server.target()
        for other in self._served():
            if other is not served and any(known.addresses == target.addresses for known in other.roster.servers):
                raise DlbctlError(f"{server.url} is a server of cell {other.tier.settings.cell} already")
        served.roster.add(target)
        return self._followed(served, f"server {target.name} ({target.addresses[0]})", "none -> added", by)

    def remove_server(self, name: str, by: str) -> list[ServerRow]:
        """Send no more requests to a server of this process, until a restart. What is in flight there ends."""
        tiers = {served.tier: served for served in self._served()}
        place = _find(name, tiers)
        served = tiers[place.tier]
        served.roster.remove(place.target.addresses[0])
        where = f"server {place.target.name} ({place.target.addresses[0]})"
        return self._followed(served, where, "there -> removed", by)

    def _followed(self, served: ServedCell, what: str, how: str, by: str) -> list[ServerRow]:
        served.follow()
        self._router.retire_pools()
        self._router.changed()
        _LOG.info("%s of cell %s by %s: %s", what, served.tier.settings.cell, by, how)
        return served.servers(self._router.clock())

    def _tiers(self) -> list[Tier]:
        return [self._router.tier, *self._router.local.values()]

    def _cell(self, name: str) -> ServedCell:
        served = {cell.tier.settings.cell: cell for cell in self._served()}
        if not served:
            raise DlbctlError("this root serves no cell from its own process", hint="ask the leaves of the cell")
        if not name and len(served) == 1:
            return next(iter(served.values()))
        if name not in served:
            fault = f"no cell {name!r} is served from this process" if name else "several cells are served here"
            raise DlbctlError(fault, hint=f"name one of: {', '.join(sorted(served))}")
        return served[name]


def _find(name: str, tiers: Iterable[Tier]) -> Place:
    """The one place of that name or address. DlbctlError when it is none or several."""
    there = [place for tier in tiers for place in _places(tier)]
    words = {name, _url(name)}
    found = [place for place in there if not words.isdisjoint(place.names)]
    if not found:
        known = ", ".join(map(str, there)) or "nothing"
        raise DlbctlError(f"there is no {name!r} here", hint=f"there is: {known}")
    if len(found) > 1:
        raise DlbctlError(f"{name!r} may be {' or '.join(map(str, found))}", hint="name it by its address")
    return found[0]


def _places(tier: Tier) -> Iterator[Place]:
    for target in tier.targets.values():
        yield Place(tier, target, "")
        if tier.role == "root":
            for address in target.addresses:
                if not address.startswith(LOCAL_PREFIX):
                    yield Place(tier, target, address)


def _url(name: str) -> str:
    """An address as tiers have it, for whatever an operator may write for it."""
    try:
        return Address(name).url
    except ConfigError:
        return name


def _state(drained: bool) -> str:
    return "drained" if drained else "ready"
