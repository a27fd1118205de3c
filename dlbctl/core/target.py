"""Targets (cells of a root, servers of a leaf), and candidates: one endpoint at one target, with its cost."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Final

from dlbctl.core.decay import DecayedCount
from dlbctl.core.events import EndpointState
from dlbctl.core.health import Health, Standing
from dlbctl.core.on_the_way import OnTheWay

if TYPE_CHECKING:
    import random

    from dlbctl.core.curve import Curve
    from dlbctl.core.endpoint import Endpoint
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.settings import HealthSettings, TargetSettings

ERROR_HALF_LIFE_S = 10.0
# A target that says it is busy is left alone for so long, twice as long after each time in a row.
BUSY_FIRST_S = 0.1
BUSY_MAX_S = 5.0
RETRY_AFTER_MAX_S = 60.0
# How long a candidate's dither stays: past the time in which a curve could answer it, short beside a curve's memory.
DITHER_MIN_S: Final = 5.0
DITHER_MAX_S: Final = 10.0


class Target:
    """A cell or a server: its addresses, which of them take requests, and what is in flight there.

    down: addresses that do not answer. drained: those an operator took out. shut: either; up: not all are shut.
    share: of its weight, while it comes back. ejections: so far. tau_s: one-way network latency, half the least
    round trip to any of its addresses. sources: what each leaf of a cell was told of the
    distance to each cell with roots.
    """

    __slots__ = (
        "_next",
        "addresses",
        "candidates",
        "down",
        "drained",
        "ejections",
        "health",
        "in_flight",
        "label",
        "models",
        "name",
        "rtt_s",
        "settings",
        "share",
        "shut",
        "sources",
        "tau_s",
        "up",
    )

    def __init__(self, settings: TargetSettings, health: HealthSettings) -> None:
        self.settings = settings
        self.health = Health(health)
        self.ejections = 0
        self.share = 1.0
        self.name = settings.name
        self.label = settings.name.encode()  # the name as it stands in headers
        self.addresses = settings.addresses
        # Nothing is known to answer until the driver says so.
        self.down = set(settings.addresses)
        self.drained: frozenset[str] = frozenset()
        self.shut: frozenset[str] = frozenset(settings.addresses)
        self.up = False
        self.models = settings.endpoints
        self.candidates: list[Candidate] = []
        self.in_flight = 0
        self.rtt_s: dict[str, float] = {}
        self.tau_s = 0.0
        self.sources: dict[str, dict[str, float]] = {}
        self._next = 0

    def __repr__(self) -> str:
        state = "up" if self.up else "down"
        return f"<Target {self.name} {state}, {self.in_flight} in flight>"

    @property
    def state(self) -> str:
        """In a word, for people: the gravest first."""
        if len(self.down) == len(self.addresses):
            return "loading" if self.health.loading else "down"
        if not self.up:
            return "drained"
        if self.health.standing is not Standing.IN:
            return str(self.health.standing)
        return "slow start" if self.share < 1.0 else "up"

    def reweigh(self, now_s: float) -> None:
        """Give it the share of its weight that is due by now."""
        share = self.health.share(now_s)
        if share != self.share:
            self.share = share
            for candidate in self.candidates:
                candidate.weight = self.settings.weight * share
                candidate.endpoint.touch(candidate)

    def measured(self, address: str, rtt_s: float) -> None:
        """The round trip to an address is this one, as far as is known now."""
        if self.rtt_s.get(address) != rtt_s:
            self._place({**self.rtt_s, address: rtt_s})

    def lost(self, address: str) -> None:
        """An address does not answer: what was measured to it is no longer true."""
        self._place({other: rtt_s for other, rtt_s in self.rtt_s.items() if other != address})

    def _place(self, rtt_s: dict[str, float]) -> None:
        self.rtt_s = rtt_s
        self.tau_s = 0.5 * min(rtt_s.values(), default=0.0)

    def change(self, settings: TargetSettings) -> None:
        """Take over other settings: addresses that stay fare as they did, new ones are not known to answer."""
        kept = [address for address in settings.addresses if address in self.addresses]
        self.down = {address for address in settings.addresses if address in self.down or address not in kept}
        self.drained = self.drained.intersection(settings.addresses)
        self._place({address: rtt_s for address, rtt_s in self.rtt_s.items() if address in kept})
        self.sources = {address: told for address, told in self.sources.items() if address in kept}
        self.settings = settings
        self.addresses = settings.addresses
        self.models = settings.endpoints or self.models  # until it is asked, what it served so far
        self._shut()

    def mark(self, address: str, *, up: bool) -> None:
        """An address answers or does not. A cell only falls with all its leaves."""
        if up:
            self.down.discard(address)
        else:
            self.down.add(address)
        self._shut()

    def drain(self, addresses: frozenset[str]) -> None:
        """Take these addresses, and no others, out by hand. What is in flight there stays until it ends."""
        self.drained = addresses
        self._shut()

    def _shut(self) -> None:
        self.shut = self.drained.union(self.down)
        self.up = len(self.shut) < len(self.addresses)

    def takes(self, address: str) -> bool:
        """Whether this is one of its addresses and takes requests."""
        return address in self.addresses and address not in self.shut

    def next_address(self, serving: frozenset[str], tried: tuple[str, ...]) -> str | None:
        """The next address in turn that answers, is of those serving and was not tried; None when none is left."""
        if len(self.addresses) == 1 and not self.shut and not tried:
            return self.addresses[0]
        for _ in self.addresses:
            address = self.addresses[self._next % len(self.addresses)]
            self._next = (self._next + 1) % len(self.addresses)
            if address in serving and address not in self.shut and address not in tried:
                return address
        return None


class Candidate:
    """One endpoint at one target: the reported state, what this tier has sent there, the cost of sending more.

    Satisfies `policy.View`. busy: times in a row that it said it is; busy_until_s: it is left alone until then.
    place: among the endpoint's routable candidates, -1 outside of them.
    curve, tail: what policies go by; learned, learned_tail: what its leaves reported. swing: by how many SDs the one is
    off the other, until swing_until_s.
    serving: the target's addresses behind which there is a server for it; of a cell, the leaves that report some.
    Counts are never reset while an exchange is open: a target that is removed and added again gets new candidates,
    and old exchanges give back to the old ones.
    """

    __slots__ = (
        "busy",
        "busy_until_s",
        "cost",
        "counted",
        "curve",
        "curves",
        "endpoint",
        "errors",
        "in_flight",
        "k",
        "learned",
        "learned_tail",
        "load",
        "name",
        "on_the_way",
        "per_token",
        "place",
        "prefill_s_per_token",
        "reported_s",
        "reports",
        "requests",
        "serving",
        "stale",
        "swing",
        "swing_until_s",
        "tail",
        "tails",
        "target",
        "tau_s",
        "weight",
        "work_s",
    )

    def __init__(self, endpoint: Endpoint, target: Target) -> None:
        self.endpoint = endpoint
        self.target = target
        self.name = target.name
        self.weight = target.settings.weight * target.share
        self.in_flight = 0
        self.work_s = 0.0
        self.stale = False
        self.counted = False  # its target's requests are part of the endpoint's RIF
        self.load = 0.0
        self.cost = 0.0
        self.per_token = 0.0
        self.place = -1
        self.prefill_s_per_token = 0.0
        self.tau_s = target.tau_s
        self.k = target.settings.weight
        self.serving = frozenset(target.addresses)
        self.busy = 0
        self.busy_until_s = 0.0
        self.on_the_way = OnTheWay()
        self.reports: dict[str, EndpointState] = {}
        self.reported_s = 0.0
        self.curve: Curve | None = None
        self.tail: Curve | None = None
        self.learned: Curve | None = None
        self.learned_tail: Curve | None = None
        self.curves: dict[str, Curve] = {}
        self.tails: dict[str, Curve] = {}
        self.swing = 0.0
        self.swing_until_s = 0.0
        self.errors = DecayedCount(ERROR_HALF_LIFE_S)
        self.requests = DecayedCount(ERROR_HALF_LIFE_S)

    def __repr__(self) -> str:
        return f"<Candidate {self.endpoint.name}@{self.target.name} load={self.load:.2f} cost={self.cost:.4g}>"

    @property
    def rif(self) -> float:
        """Requests in flight at the target as far as this tier can know."""
        return self.load * self.k

    @property
    def capacity_rps(self) -> float:
        """Requests per second that one server of the cell takes: as configured, else by the curve; 0 if unknown."""
        given = self.target.settings.capacity_rps
        if given > 0.0 or self.learned is None:
            return given
        return self.learned.capacity_per_server()

    @property
    def arrivals(self) -> dict[str, float]:
        """Requests per second by source, at all leaves of the cell together."""
        total: dict[str, float] = {}
        for report in self.reports.values():
            for source, rate in report.arrivals.items():
                total[source] = total.get(source, 0.0) + rate
        return total

    @property
    def sources(self) -> dict[str, float]:
        """One-way delay [s] by source, to the nearest leaf of the cell."""
        nearest: dict[str, float] = {}
        for told in self.target.sources.values():
            for source, tau_s in told.items():
                nearest[source] = min(tau_s, nearest.get(source, tau_s))
        return nearest

    @property
    def answers(self) -> bool:
        """Whether there is an address to send it to."""
        return self.k > 0 and not self.serving <= self.target.shut

    def has_address_beside(self, tried: tuple[str, ...]) -> bool:
        """Whether an address answers that was not tried."""
        shut = self.target.shut
        return any(address not in shut and address not in tried for address in self.serving)

    def admits(self, now_s: float, background: bool) -> bool:
        """Whether one more may be sent there now. background: only beside one of a user's, for which that leaves room.

        So a request of the leaf's own tries no server out either: while it did, no user could.
        """
        target = self.target
        slots = target.settings.slots
        if now_s < self.busy_until_s or (slots and target.in_flight + background >= slots):
            return False
        if self.endpoint.panic:
            return True
        return target.health.standing is Standing.IN if background else target.health.trial is None

    def hold(self, now_s: float, retry_after_s: float) -> None:
        """It said that it is busy: leave it alone for a while, or as long as it asked."""
        if now_s < self.busy_until_s:
            return  # requests that were sent together are declined together
        own_s = min(BUSY_FIRST_S * 2.0 ** min(self.busy, 10), BUSY_MAX_S)
        self.busy += 1
        self.busy_until_s = now_s + max(own_s, min(retry_after_s, RETRY_AFTER_MAX_S))
        self.endpoint.held_until_s = max(self.endpoint.held_until_s, self.busy_until_s)

    def take(self, now_s: float, exchange: Exchange) -> None:
        """Count the exchange here."""
        assert exchange.candidate is None
        exchange.candidate = self
        self.work_s += exchange.prefill_s + exchange.decode_s
        if self.reports:
            self.on_the_way.sent(now_s)
        self._count(1)

    def give_back(self, exchange: Exchange) -> None:
        """Stop counting the exchange here; called exactly once for each `take`."""
        assert exchange.candidate is self
        exchange.candidate = None
        self.work_s -= exchange.prefill_s + exchange.decode_s
        self._count(-1)
        if self.in_flight == 0:
            self.work_s = 0.0  # sums of floats do not return to zero by themselves

    def _count(self, step: int) -> None:
        target, endpoint = self.target, self.endpoint
        self.in_flight += step
        target.in_flight += step
        endpoint.in_flight += step
        if not self.stale:
            endpoint.touch(self)
        if not self.reports:
            # A server's load is that of all the endpoints it serves; a cell's is reported for each.
            for candidate in target.candidates:
                if candidate.counted:
                    candidate.endpoint.rif += step
                    if not candidate.stale:
                        candidate.endpoint.touch(candidate)

    def prefilled(self, exchange: Exchange) -> None:
        """The first byte is here: the prefill part of the work is done."""
        self.work_s -= exchange.prefill_s
        exchange.prefill_s = 0.0
        if not self.stale:
            self.endpoint.touch(self)

    def report(self, now_s: float, address: str, state: EndpointState, root: str) -> bool:
        """Take over what a leaf reported to this root; whether more than its load has changed.

        A curve travels only when it is new: the last is kept.
        """
        before = self.reports.get(address)
        self.reports[address] = state
        self.reported_s = now_s
        self.on_the_way.reported(now_s, address, state.received.get(root, 0), self.target.rtt_s.get(address, 0.0))
        self.tau_s = self.target.tau_s
        if state.prefill_s_per_token > 0.0:
            self.prefill_s_per_token = state.prefill_s_per_token
        curve_is_new = _keep(self.curves, address, state.curve, state.curve_version)
        tail_is_new = _keep(self.tails, address, state.tail, state.tail_version)
        if before is not None and before.k == state.k and not (curve_is_new or tail_is_new):
            return False
        self._sum_up()
        return True

    def forget(self, address: str) -> None:
        """An address does not answer any more: what it reported is no longer true."""
        if self.reports.pop(address, None) is not None:
            self.curves.pop(address, None)
            self.tails.pop(address, None)
            self.on_the_way.forget(address)
            self._sum_up()

    def _sum_up(self) -> None:
        """What the leaves that report say together; with none left the cell is not known to serve this endpoint."""
        self.k = self.weight = max((report.k for report in self.reports.values()), default=0.0)
        self.serving = frozenset(address for address, report in self.reports.items() if report.k > 0)
        self.learned = _surest(self.curves)
        self.learned_tail = _surest(self.tails)
        self.see()

    def explore(self, now_s: float, dice: random.Random) -> None:
        """Draw another dither, if it is time to."""
        if now_s >= self.swing_until_s:
            self.swing_until_s = now_s + dice.uniform(DITHER_MIN_S, DITHER_MAX_S)
            self.swing = dice.gauss(0.0, 1.0)
            self.see()
            self.endpoint.touch(self)

    def see(self) -> None:
        """Show policies the curves as they were learned, or somewhat off: as far as nobody knows better."""
        self.curve, self.tail = self.learned, self.learned_tail
        off = self.endpoint.dither * self.swing
        if self.learned is not None and off != 0.0:
            if self.learned.sd_log_gradient < self.endpoint.dither:
                off = self.learned.sd_log_gradient * self.swing
            self.curve = self.learned.scaled(exp(off))
            if self.learned_tail is not None:
                self.tail = self.learned_tail.scaled(exp(off))

    def measure(self) -> None:
        """Bring `load` up to date. Changes nothing else, so looking at a tier never changes what it decides.

        A cell's load is what its leaves reported plus what this root sent and they had not received by then, unless
        the mechanism is one that takes the report as it is.
        """
        if self.reports:
            rif = min(len(self.on_the_way), self.in_flight) if self.endpoint.corrected else 0
            for report in self.reports.values():
                rif += report.rif
        else:
            rif = self.target.in_flight
        self.load = rif / self.weight if self.weight > 0.0 else 0.0


def _keep(curves: dict[str, Curve], address: str, told: Curve | None, version: int) -> bool:
    """Take over a curve that was reported, or that there is none; whether that is news."""
    if told is not None:
        if curves.get(address) is told:  # a simulated leaf reports it with every state
            return False
        curves[address] = told
        return True
    return version == 0 and curves.pop(address, None) is not None


def _surest(curves: dict[str, Curve]) -> Curve | None:
    """Of several leaves' curves the one that most samples made."""
    return max(curves.values(), key=lambda curve: curve.samples, default=None)
