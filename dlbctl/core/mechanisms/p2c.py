"""Draw two targets and take the one with fewer requests in flight per server: the power of two choices.

Mitzenmacher 2001; `power-of-d/rif` under the name by which most balancers have it. The two are drawn whatever their
weights are.
"""

from __future__ import annotations

from typing import ClassVar

from dlbctl.core.mechanisms import power_of_d


class Mechanism(power_of_d.Mechanism):
    """The lesser N/k of two."""

    COST: ClassVar[str | None] = "rif"
