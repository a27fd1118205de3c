"""How much there is to simulate, told before it begins: what would never end is refused.

A step is about what a root takes to hear of one cell, some ten microseconds.
"""

from __future__ import annotations

from dlbctl.core.errors import UsageError

# Weeks of one core: the paper's experiment of short requests, its longest, is a quarter of it.
MOST_STEPS = 1e11
_STEPS_PER_REQUEST = 10.0


def steps_of(*, rounds: float, sources: int, cells: int, servers: int, requests: float) -> float:
    """Of a run with so many rounds of probes: in each, roots hear of all cells, and leaves look at all servers."""
    return rounds * (sources * cells + servers) + _STEPS_PER_REQUEST * requests


def refuse_endless(steps: float, *, hint: str) -> None:
    """UsageError, with what to do about it, for more than anybody waits for."""
    if steps > MOST_STEPS:
        raise UsageError(
            f"this would take {steps:.1e} steps, and more than {MOST_STEPS:.0e}, weeks of work, are not begun",
            hint=hint,
        )
