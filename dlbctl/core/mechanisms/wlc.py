"""Weighted least connections: the fewest requests in flight per server.

IPVS' scheduler of that name, with live servers for weights. DLB section 3.2 takes its RIF cost for an instance of it:
this is `discrete/rif` under the name by which it is known.
"""

from __future__ import annotations

from typing import ClassVar

from dlbctl.core.mechanisms import discrete


class Mechanism(discrete.Mechanism):
    """Least N/k."""

    COST: ClassVar[str | None] = "rif"
