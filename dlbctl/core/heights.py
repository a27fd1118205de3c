"""How far each cost lies above the least: what shares roll down from.

A projection onto the simplex does not see what all coordinates have in common, so only differences matter. In each
function a cost that is no number counts as infinite, and where all are there is no height to speak of: an empty list.
"""

from __future__ import annotations

from math import log
from typing import Final

NEVER: Final = float("inf")
# No difference moves shares faster than this one: a factor of e in cost, or the mean load.
HIGHEST: Final = 1.0


def above_least(costs: list[float]) -> list[float]:
    """h = c - min c, in the cost's unit: the paper's own."""
    costs, least = _sound(costs)
    return [cost - least for cost in costs] if least < NEVER else []


def log_above_least(costs: list[float]) -> list[float]:
    """h = min(ln(c / min c), 1), for costs above 0. One of 0 or less has no logarithm: then as `relative_to_mean`."""
    sound, least = _sound(costs)
    if least == NEVER:
        return []
    if least <= 0.0:
        return relative_to_mean(costs)
    # The quotient of what is far apart may be infinite, which is as high as anything.
    return [min(log(cost / least), HIGHEST) if cost < NEVER else HIGHEST for cost in sound]


def relative_to_mean(costs: list[float]) -> list[float]:
    """h = min((c - min c) / max(1, mean c), 1), for costs such as counts, of which 0 is one and ratios say little."""
    sound, least = _sound(costs)
    if least == NEVER:
        return []
    total, count = 0.0, 0
    for cost in sound:
        if cost < NEVER:
            total += cost
            count += 1
    unit = max(total / count, 1.0)
    return [min((cost - least) / unit, HIGHEST) for cost in sound]


def _sound(costs: list[float]) -> tuple[list[float], float]:
    """Costs with infinity for whatever is no number, and the least of them; infinity where there is none."""
    sound = [cost if -NEVER < cost < NEVER else NEVER for cost in costs]
    return sound, min(sound, default=NEVER)
