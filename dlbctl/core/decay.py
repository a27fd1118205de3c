"""Numbers that forget: exponentially decayed counts and moving averages."""

from __future__ import annotations

from math import exp2, log


class DecayedCount:
    """A count in which an event weighs half as much after each half-life."""

    __slots__ = ("_at_s", "_count", "half_life_s")

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self._count = 0.0
        self._at_s = 0.0

    def __repr__(self) -> str:
        return f"<DecayedCount {self._count:.3g} at {self._at_s:.3f} s>"

    def add(self, now_s: float, amount: float = 1.0) -> None:
        """Count something that happened now."""
        self._count = self._count * exp2((self._at_s - now_s) / self.half_life_s) + amount
        self._at_s = now_s

    def read(self, now_s: float) -> float:
        """The count as it weighs now."""
        if self._count == 0.0:
            return 0.0
        return self._count * exp2((self._at_s - now_s) / self.half_life_s)

    def rate(self, now_s: float) -> float:
        """Events per second, as they have come lately."""
        return self.read(now_s) * log(2.0) / self.half_life_s


class Rate:
    """Events per second of late, told from as much of a past as there is. since_s: when counting began."""

    __slots__ = ("_count", "_since_s")

    def __init__(self, half_life_s: float, since_s: float) -> None:
        self._count = DecayedCount(half_life_s)
        self._since_s = since_s

    def __repr__(self) -> str:
        return f"<Rate of {self._count!r} since {self._since_s:.3f} s>"

    def add(self, now_s: float) -> None:
        """Count an event that happened now."""
        self._count.add(now_s)

    def weight(self, now_s: float) -> float:
        """How much has been counted, as it weighs now."""
        return self._count.read(now_s)

    def age_s(self, now_s: float) -> float:
        """How long it has been counting."""
        return now_s - self._since_s

    def read(self, now_s: float) -> float:
        """Events per second. The past must have some length (`age_s`); a short one says little."""
        return self._count.rate(now_s) / (1.0 - exp2(-self.age_s(now_s) / self._count.half_life_s))


class Average:
    """An exponentially weighted moving average with a starting value."""

    __slots__ = ("value", "weight")

    def __init__(self, start: float, weight: float) -> None:
        self.value = start
        self.weight = weight

    def __repr__(self) -> str:
        return f"<Average {self.value:.4g}>"

    def add(self, sample: float) -> None:
        """Move towards a sample."""
        self.value += self.weight * (sample - self.value)
