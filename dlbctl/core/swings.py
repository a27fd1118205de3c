"""Whether shares swing: found by their likeness to what they were half a period and a whole one ago.

A loop whose stepsize is too large for its delays swings at a period of its own, which lies somewhere between the delay
and some eight times the delay and the time in which a cell empties: two decades. So shares are looked at in octaves of
time, each twice as slow as the one before; in each, steps of the shares are compared with earlier steps. Those of noise
and of a random walk resemble no others, those of shares that settle resemble all, only those of a swing are the
opposite of what they were half a period ago and the same as a whole one ago. A swing that dies away is so less.
"""

from __future__ import annotations

from math import pi, sin, sqrt
from typing import Final

# Between two looks at the shares in the fastest octave. A period is 4 to 8 looks of its octave.
LOOK_S: Final = 0.1
OCTAVES: Final = 10
SHORTEST: Final = 4
LONGEST: Final = 8
# Likeness (a correlation) to what was a period ago from which shares swing, and below which they do no more.
SURE: Final = 0.6
CALM: Final = 0.3
# How far to each side they must go for it to be worth an alarm, as a part of the shares (lengths of vectors).
WORTH: Final = 0.05
# Many cells and much chance make a swing irregular: from one to the next everything turns, never the same way. Then
# likeness to the opposite of half a period ago has to do, if it is as large as no chance and no settling makes it.
HERDING: Final = 0.4
LARGE: Final = 0.4
# So many looks weigh: 3 to 6 periods.
MEMORY: Final = 24.0
KEPT: Final = 1.0 - 1.0 / MEMORY
# After so long without a look what was seen is too old to go on from.
GAP_S: Final = 2.0

# How much a stepsize regrows, how many periods a swing has to abate, and to which part of what it was. Where it needs
# less than the least factor, smaller steps are no remedy, and they would take an hour to regrow.
REGROWTH: Final = 1.05
PATIENCE: Final = 3.0
ABATED: Final = 0.8
LEAST: Final = 0.01


class Swings:
    """Watches shares, always the same number of them. swinging: whether they do.

    period_s, extent: of the last swing, how long and how far to each side [length of the vector of shares].
    """

    __slots__ = ("_due_s", "_octaves", "extent", "period_s", "swinging")

    def __init__(self) -> None:
        self.swinging = False
        self.period_s = 0.0
        self.extent = 0.0
        self._due_s = 0.0
        self._octaves: list[_Octave] = []

    def __repr__(self) -> str:
        return f"<Swings every {self.period_s:.2f} s>" if self.swinging else "<Swings: none>"

    def restart(self) -> None:
        """Forget what was seen: the shares are others now, or move in another way."""
        self._octaves = []

    def look(self, now_s: float, shares: list[float], slowest_s: float) -> bool:
        """Look at the shares, if it is time to, and say whether something new may be seen.

        slowest_s: swings with a longer period are none of this loop's own.
        """
        if now_s < self._due_s:
            return False
        if now_s > self._due_s + GAP_S:
            self.restart()
            self._due_s = now_s
        self._due_s += LOOK_S
        if not self._octaves:
            self._octaves = [_Octave() for _ in range(OCTAVES)]
        seen = shares
        for octave in self._octaves:
            seen = octave.take(seen)
            if not seen:
                break
        self._judge(slowest_s)
        return True

    def _judge(self, slowest_s: float) -> None:
        """Go by the octave in which they swing farthest: slower ones see a little of the same swing."""
        calm, farthest, look_s = True, 0.0, LOOK_S
        for octave in self._octaves:
            period_s = octave.period * look_s
            look_s *= 2.0
            if octave.is_calm or period_s > slowest_s:
                continue
            calm = False
            if octave.held >= octave.period and octave.extent > farthest:
                farthest = octave.extent
                self.swinging, self.period_s, self.extent = True, period_s, octave.extent
        if calm:
            self.swinging = False


class _Octave:
    """Steps of the shares from look to look, and how alike they are.

    period: the likeliest, in looks. extent: how far to each side they go. is_calm: nothing speaks for a swing. held:
    for how many looks everything has spoken for one.
    """

    __slots__ = ("_count", "_looks", "_products", "_steps", "extent", "held", "is_calm", "period")

    def __init__(self) -> None:
        self._looks: list[list[float]] = []  # the latest four, the latest last
        self._steps: list[list[float]] = []  # the latest first
        self._products: list[float] = [0.0] * (LONGEST + 1)
        self._count = 0
        self.period = float(LONGEST)
        self.extent = 0.0
        self.is_calm = True
        self.held = 0

    def take(self, shares: list[float]) -> list[float]:
        """Take a look. Every second time what the next octave sees, else nothing."""
        looks = self._looks
        if looks:
            self._compare([now - before for now, before in zip(shares, looks[-1], strict=True)])
            if self._count >= 2 * LONGEST:
                self._judge(sqrt(_dot(shares, shares)))
        looks.append(shares)
        if len(looks) < 4:
            return []
        last_four = list(looks)
        looks.pop(0)
        if self._count % 2:
            return []
        # Smoothed so that what is too quick for the next octave is not taken for something slow.
        first, second, third, fourth = last_four
        return [(a + 3.0 * (b + c) + d) / 8.0 for a, b, c, d in zip(first, second, third, fourth, strict=True)]

    def _compare(self, step: list[float]) -> None:
        steps, products = self._steps, self._products
        steps.insert(0, step)
        for lag, earlier in enumerate(steps):
            products[lag] = KEPT * products[lag] + _dot(step, earlier)
        if len(steps) > LONGEST:
            steps.pop()
        self._count += 1

    def _judge(self, size: float) -> None:
        """Judge by what was seen so far. size: of the shares."""
        likeness, opposite = self._likeness()
        # The amplitude of a sine that has steps of this size.
        weight = MEMORY * (1.0 - KEPT**self._count)
        self.extent = sqrt(self._products[0] / weight / 2.0) / sin(pi / self.period)
        herds = opposite >= HERDING and self.extent >= LARGE * size
        swings = herds or (likeness >= SURE and self.extent >= WORTH * size)
        self.held = self.held + 1 if swings else 0
        self.is_calm = not (swings or (likeness >= CALM and self.extent >= WORTH * size))

    def _likeness(self) -> tuple[float, float]:
        """To what was a period ago, and to the opposite of what was half of one ago, each at its best."""
        products, own = self._products, self._products[0]
        alike, opposite = 0.0, 0.0
        if own <= 0.0:
            return alike, opposite
        for period in range(SHORTEST, LONGEST + 1):
            contrary = -min(products[period // 2], products[(period + 1) // 2]) / own
            likeness = min(contrary, products[period] / own)
            if likeness > alike or (alike == 0.0 and contrary > opposite):
                self.period = float(period)
            alike, opposite = max(alike, likeness), max(opposite, contrary)
        return alike, opposite


class Throttle:
    """A factor of the stepsize: halved while shares swing and do so no less than before, and regrown when they do not.

    Regrowth is by 5 % per second, or per period of the last swing if that is longer: it takes some periods to see that
    a stepsize is too large again, and until then it should not have become much larger.
    """

    __slots__ = ("_checked_s", "_extent", "_last_s", "factor")

    def __init__(self) -> None:
        self.factor = 1.0
        self._last_s = 0.0
        self._checked_s = 0.0
        self._extent = 0.0  # of the swing when last checked, 0 where there was none

    def __repr__(self) -> str:
        return f"<Throttle {self.factor:.3g}>"

    def follow(self, now_s: float, swings: Swings) -> None:
        """Follow what was seen; told after each look."""
        passed_s = min(max(now_s - self._last_s, 0.0), GAP_S)
        self._last_s = now_s
        if not swings.swinging:
            self._extent = 0.0
            self.factor = min(self.factor * REGROWTH ** (passed_s / max(swings.period_s, 1.0)), 1.0)
        elif self._extent == 0.0 or now_s >= self._checked_s + PATIENCE * swings.period_s:
            if swings.extent > ABATED * self._extent:
                self.factor = max(0.5 * self.factor, LEAST)
            self._extent = swings.extent
            self._checked_s = now_s


def _dot(one: list[float], other: list[float]) -> float:
    total = 0.0
    for a, b in zip(one, other, strict=True):
        total += a * b
    return total
