"""Whether a server is well: what its probes find (active) and how its requests fare (passive).

Probes decide whether an address answers at all; that is `Target.down`. Failing requests eject a server that
answers its probes but not its work: it is out for a while, then one request tries it (half-open), and if that
goes well it comes back gently (slow start).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from dlbctl.core.events import Probe

if TYPE_CHECKING:
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.settings import HealthSettings

NEVER = float("inf")
# A server that comes back begins with this share of its weight.
FIRST_SHARE = 0.1


class Standing(StrEnum):
    """What failing requests have made of a server."""

    IN = "in"
    OUT = "ejected"
    TRIAL = "trial"  # one request at a time, until one goes well


class Health:
    """One server's record. Consecutive failures, because one success proves that it can work.

    until_s: end of an ejection. trial: the request that decides. ejections: in a row, each twice as long.
    loading: its last probe found it loading its model.
    """

    __slots__ = (
        "_failures",
        "_misses",
        "_recovered_s",
        "_successes",
        "_was_up",
        "ejections",
        "loading",
        "settings",
        "standing",
        "trial",
        "until_s",
    )

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self.standing = Standing.IN
        self.until_s = 0.0
        self.trial: Exchange | None = None
        self.ejections = 0
        self.loading = False
        self._failures = 0
        self._misses = 0
        self._successes = 0
        self._was_up = False
        self._recovered_s = -NEVER

    def __repr__(self) -> str:
        return f"<Health {self.standing}, {self._failures} failures in a row>"

    # -- probes -------------------------------------------------------------------------------------------

    def probed(self, result: Probe, *, down: bool) -> bool | None:
        """Whether the address is now up (True) or down (False); None for as it was.

        A first answer is believed at once, later ones after `rise` in a row; a refusal is believed at once, and a
        probe that a busy server misses after `fall` in a row.
        """
        self.loading = result is Probe.LOADING
        if result is Probe.OK:
            self._misses = 0
            self._successes += 1
            return True if down and (not self._was_up or self._successes >= self.settings.rise) else None
        self._successes = 0
        self._misses += 1
        return False if result is not Probe.FAILED or self._misses >= self.settings.fall else None

    def came_up(self, now_s: float) -> None:
        """The address answers. Whoever was up before comes back gently."""
        if self._was_up:
            self._recovered_s = now_s
        self._was_up = True

    def went_down(self) -> None:
        """The address does not answer, whoever noticed: probes answered before do not bring it back."""
        self._successes = 0

    # -- requests -----------------------------------------------------------------------------------------

    def succeeded(self, now_s: float, exchange: Exchange) -> bool:
        """A request went well. Whether that ends a trial."""
        self._failures = 0
        self._misses = 0
        if self.standing is Standing.IN or self.trial is not exchange:
            return False
        self.trial = None
        self.standing = Standing.IN
        self.ejections = 0
        self._recovered_s = now_s
        return True

    def failed(self, exchange: Exchange) -> bool:
        """A request went wrong. Whether the server should be ejected for it."""
        self._failures += 1
        tried = self.trial is exchange
        if tried:
            self.trial = None  # in panic, or where no more may be ejected, no ejection follows to end it
        if self.standing is Standing.TRIAL:
            return tried
        limit = self.settings.failures
        return self.standing is Standing.IN and 0 < limit <= self._failures

    def eject(self, now_s: float) -> None:
        """Out, for twice as long as the last time."""
        self.standing = Standing.OUT
        self.trial = None
        self.until_s = now_s + min(self.settings.eject_s * 2.0**self.ejections, self.settings.eject_max_s)
        self.ejections += 1
        self._failures = 0

    def sent(self, exchange: Exchange) -> None:
        """A request was sent there while a trial is due: it is the trial."""
        if self.trial is None:
            self.trial = exchange

    def undecided(self, exchange: Exchange) -> None:
        """A request ended without saying anything of the server; if it was the trial, the next one is."""
        if self.trial is exchange:
            self.trial = None

    # -- time ---------------------------------------------------------------------------------------------

    def share(self, now_s: float) -> float:
        """How much of its weight a server gets that has just come back, FIRST_SHARE to 1."""
        slow_start_s = self.settings.slow_start_s
        since_s = now_s - self._recovered_s
        if since_s >= slow_start_s:
            return 1.0
        return max(FIRST_SHARE, since_s / slow_start_s)

    def tend(self, now_s: float) -> bool:
        """Whether an ejection has just ended, so that a trial is due."""
        if self.standing is Standing.OUT and now_s >= self.until_s:
            self.standing = Standing.TRIAL
            return True
        return False
