"""Draw the target from shares that move, each round, some way from dear targets to cheap ones.

DLB section 3.2.2: x <- Proj(x - eta dt c), gradient descent on the shares x of this router's requests, projected onto
the simplex. It starts in proportion to the servers. The paper has eta inversely proportional to the mean network
latency, and sees the state as it was reported: its convergence is proved for states that are late, and for steps that
are small enough.
"""

from __future__ import annotations

from typing import ClassVar, Final

from dlbctl.core.heights import above_least
from dlbctl.core.moving_shares import MovingShares
from dlbctl.core.projection import downhill

# eta = KAPPA / tau [1/s^2 for costs in seconds]. The paper gives no constant. This one settles at 80 % utilisation
# where an unloaded request takes some .8 s; near saturation, where 1/mu' explodes, it swings.
KAPPA_PER_S: Final = 0.01


class Mechanism(MovingShares):
    """Projected gradient descent on the costs themselves."""

    CORRECTED: ClassVar[bool] = False
    KAPPA: ClassVar[float] = KAPPA_PER_S

    def moved(self, shares: list[float], costs: list[float], length: float) -> tuple[list[float], list[float]]:
        """Proj(x - length c), learned and used alike."""
        moved = step(shares, costs, length)
        return moved, moved


def step(shares: list[float], costs: list[float], length: float) -> list[float]:
    """Proj(x - length c); the shares as they are where nothing can be told or no time has passed."""
    heights = above_least(costs)
    return downhill(shares, heights, length) if heights and length > 0.0 else shares
