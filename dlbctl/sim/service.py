"""How long requests take in a cell, as a function of its load: what curves, queues and Pigou's links have in common.

All are of n, requests in flight per server. A latency L(z) that is given as a function of the flow z [requests/s per
server], as in the literature on routing games, becomes one of n by Little's law: n = z L(z).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Protocol


class Service(Protocol):
    """A law of service. `core.curve.Curve` is one; μ(n) = n / l(n) rises strictly (the paper's Assumption 1)."""

    def latency_s(self, n: float) -> float:
        """l(n) [s]: mean latency of a request that meets n requests in flight per server."""

    def rate_per_server(self, n: float) -> float:
        """μ(n) [requests/s per server]."""

    def gradient_s(self, n: float) -> float:
        """1/μ'(n) [s]: by how much one more request/s raises the number in flight."""

    def capacity_per_server(self) -> float:
        """sup μ [requests/s per server]."""


@dataclass(frozen=True, slots=True)
class Queue:
    """An M/M/1 queue, L(z) = 1 / (rate - z): l(n) = (1 + n) / rate.

    rate: what a server serves when busy [requests/s].
    """

    rate: float

    def latency_s(self, n: float) -> float:
        """L(n) [s]."""
        return (1.0 + n) / self.rate

    def rate_per_server(self, n: float) -> float:
        """μ(n) [requests/s per server]."""
        return self.rate * n / (1.0 + n)

    def gradient_s(self, n: float) -> float:
        """1/μ'(n) [s]."""
        return (1.0 + n) ** 2 / self.rate

    def capacity_per_server(self) -> float:
        """The rate."""
        return self.rate


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A link of a routing game, L(z) = idle_s + factor z^degree, without a bound on its flow.

    The bounds on the price of anarchy are proven for these: 4/3 at degree 1, with Pigou's pair (1, and z) attaining it
    (Roughgarden and Tardos 2002). Unlike the paper's Assumption 1, μ has no bound. Closed forms in n need a degree of
    1, or no constant part.
    """

    idle_s: float
    factor: float = 0.0
    degree: float = 1.0

    def __post_init__(self) -> None:
        if self.degree != 1.0 and self.idle_s and self.factor:
            raise ValueError("a link of a degree other than 1 has no constant part")

    def latency_s(self, n: float) -> float:
        """L(n) [s]."""
        return self.idle_s + self.factor * float(self.rate_per_server(n) ** self.degree)

    def rate_per_server(self, n: float) -> float:
        """μ(n) [requests/s per server]: the z with z L(z) = n."""
        if self.degree != 1.0 and self.factor:
            return float((n / self.factor) ** (1.0 / (self.degree + 1.0)))
        return 2.0 * n / (self._root(n) + self.idle_s) if n > 0.0 else 0.0

    def gradient_s(self, n: float) -> float:
        """1/μ'(n) = L(z) + z L'(z) [s]."""
        return self.idle_s + (1.0 + self.degree) * (self.latency_s(n) - self.idle_s)

    def capacity_per_server(self) -> float:
        """None: any flow passes."""
        return inf

    def _root(self, n: float) -> float:
        return sqrt(self.idle_s**2 + 4.0 * self.factor * n)
