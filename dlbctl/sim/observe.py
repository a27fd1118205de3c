"""What is told of every simulated request once it is over."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Whoever measures."""

    def ended(
        self,
        at_s: float,
        source: int,
        cell: int,
        server: str,
        arrived_s: float,
        latency_s: float,
        ttft_s: float,
        status: int,
        code: str,
    ) -> None:
        """A request is over. latency_s, ttft_s: as its client saw them. cell: -1: none. code: empty if it went well."""
