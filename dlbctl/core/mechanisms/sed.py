"""Send each request to where its expected delay is shortest: the queue with it, over the rate, plus the round trip.

Shortest expected delay, as DLB section 2 names it and IPVS has it. Ties are those of `discrete`; without a curve of
every target it goes by requests per server.
"""

from __future__ import annotations

from typing import ClassVar

from dlbctl.core.mechanisms import discrete


class Mechanism(discrete.Mechanism):
    """Least (N + 1)/mu + 2 tau."""

    COST: ClassVar[str | None] = "sed"
