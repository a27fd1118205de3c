"""Where a leaf's requests come from, by the cell of the root they came through: how many, and over what distance.

Every leaf reports both to every root. So each root knows what the others ask for and how far they are from each cell,
which a plan for all of them together needs (`core.programs`), although roots never talk to one another.
"""

from __future__ import annotations

from typing import Final

from dlbctl.core.decay import Rate

RATE_HALF_LIFE_S: Final = 5.0
# A rate of less past than this is more chance than knowledge.
TOLD_AFTER_S: Final = 5.0
# A root asks once a second; one that is silent for so long is gone.
GONE_AFTER_S: Final = 10.0
MAX_SOURCES: Final = 64
# Told with every report, a hundred a second, and worked out as often as anybody could notice.
WORKED_OUT_S: Final = 0.25


class ArrivalRates:
    """Requests per second of one endpoint, by source."""

    __slots__ = ("_due_s", "_rates", "_told")

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}
        self._told: dict[str, float] = {}
        self._due_s = 0.0  # when what is told is worked out anew

    def __repr__(self) -> str:
        return f"<ArrivalRates of {len(self._rates)} sources>"

    def count(self, now_s: float, source: str) -> None:
        """Count a request."""
        rate = self._rates.get(source)
        if rate is None:
            rate = self._begin(now_s, source)
        rate.add(now_s)

    def read(self, now_s: float) -> dict[str, float]:
        """Those that are known and not next to nothing; the same dictionary while they count as the same."""
        if now_s >= self._due_s:
            self._due_s = now_s + WORKED_OUT_S
            told = {
                source: round(rate.read(now_s), 3)
                for source, rate in self._rates.items()
                if rate.age_s(now_s) >= TOLD_AFTER_S
            }
            self._told = {source: rate for source, rate in told.items() if rate > 0.0}
        return self._told

    def _begin(self, now_s: float, source: str) -> Rate:
        if len(self._rates) >= MAX_SOURCES:
            # Whoever sends least is missed least. The young have counted little, but more than one long gone.
            del self._rates[min(self._rates, key=lambda known: self._rates[known].weight(now_s))]
        rate = self._rates[source] = Rate(RATE_HALF_LIFE_S, now_s)
        return rate


class Distances:
    """One-way delay to this leaf from each source, as its roots have measured and told it."""

    __slots__ = ("_due_s", "_known", "_told")

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, float]] = {}  # when, and the delay [s]; the last that told is last
        self._known: dict[str, float] = {}
        self._due_s = 0.0

    def __repr__(self) -> str:
        return f"<Distances of {len(self._told)} sources>"

    def tell(self, now_s: float, source: str, tau_s: float) -> None:
        """A root of that source says how far away it is."""
        self._told.pop(source, None)
        self._told[source] = (now_s, tau_s)
        if source not in self._known:
            self._due_s = now_s
        if len(self._told) > MAX_SOURCES:
            del self._told[next(iter(self._told))]

    def read(self, now_s: float) -> dict[str, float]:
        """The delay [s] of every source that still has a root; worked out now and then, and for a new one at once."""
        if now_s >= self._due_s:
            self._due_s = now_s + WORKED_OUT_S
            self._known = {
                source: round(tau_s, 6) for source, (at_s, tau_s) in self._told.items() if now_s - at_s <= GONE_AFTER_S
            }
        return self._known
