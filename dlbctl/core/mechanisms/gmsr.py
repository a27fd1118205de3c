"""Send each request to the greatest marginal service rate, near or far: DLB's gradient without its network term.

DLB section 2 names it as what its own routing builds upon. Ties are those of `discrete`; while slopes are uncertain it
goes by requests per server.
"""

from __future__ import annotations

from typing import ClassVar

from dlbctl.core.mechanisms import discrete


class Mechanism(discrete.Mechanism):
    """Least 1/mu'(N)."""

    COST: ClassVar[str | None] = "gmsr"
