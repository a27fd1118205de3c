"""How long a server reads a prompt token, learned from times to first token.

GORGO's model of a replica: ttft = intercept + P * uncached prompt tokens + Q * load, by least squares in which a sample
weighs half as much after each half-life. Load stands in it so that P is not blamed for queues.
"""

from __future__ import annotations

from math import exp2
from typing import Final

HALF_LIFE_S: Final = 120.0
# So many effective samples make a slope of it. Prompts all alike say nothing: their spread must be this share of their
# size at least.
SAMPLES_MIN: Final = 50.0
SPREAD_MIN: Final = 0.1
# Told with every report, a hundred a second, and worked out as often as anybody could notice.
WORKED_OUT_S: Final = 1.0
# Of what is left of a variance once load has explained its part; below it tokens and load cannot be told apart.
_TOLERANCE: Final = 1e-6


class PrefillRate:
    """Decayed sums of 1, tokens u, load n and ttft y, and of their products."""

    __slots__ = ("_at_s", "_due_s", "_n", "_nn", "_told", "_u", "_un", "_uu", "_uy", "_weight", "_y", "_yn")

    def __init__(self) -> None:
        self._at_s = 0.0
        self._due_s = 0.0
        self._told = 0.0
        self._weight = 0.0
        self._u = 0.0
        self._n = 0.0
        self._y = 0.0
        self._uu = 0.0
        self._un = 0.0
        self._nn = 0.0
        self._uy = 0.0
        self._yn = 0.0

    def __repr__(self) -> str:
        return f"<PrefillRate {self.s_per_token:.3g} s per token of {self._weight:.0f} samples>"

    def add(self, now_s: float, uncached_tokens: float, load: float, ttft_s: float) -> None:
        """Take the first token of a request that met so much load and had so many tokens to be read."""
        kept = exp2((self._at_s - now_s) / HALF_LIFE_S)
        self._at_s = now_s
        self._weight = kept * self._weight + 1.0
        self._u = kept * self._u + uncached_tokens
        self._n = kept * self._n + load
        self._y = kept * self._y + ttft_s
        self._uu = kept * self._uu + uncached_tokens * uncached_tokens
        self._un = kept * self._un + uncached_tokens * load
        self._nn = kept * self._nn + load * load
        self._uy = kept * self._uy + uncached_tokens * ttft_s
        self._yn = kept * self._yn + load * ttft_s

    def told(self, now_s: float) -> float:
        """P as it is told to others: to three digits, and the same for a second."""
        if now_s >= self._due_s:
            self._due_s = now_s + WORKED_OUT_S
            self._told = float(f"{self.s_per_token:.3g}")
        return self._told

    @property
    def s_per_token(self) -> float:
        """P [s per token]; 0 while it cannot be told, or would be negative."""
        w = self._weight
        if w < SAMPLES_MIN:
            return 0.0
        u, n, y = self._u / w, self._n / w, self._y / w
        uu, un, nn = self._uu / w - u * u, self._un / w - u * n, self._nn / w - n * n
        uy, yn = self._uy / w - u * y, self._yn / w - n * y
        if uu < (SPREAD_MIN * u) ** 2:
            return 0.0
        if nn <= _TOLERANCE * (n * n + 1.0):
            return max(uy / uu, 0.0)
        rest = uu - un * un / nn
        if rest <= _TOLERANCE * uu:
            return 0.0
        return max((uy - un * yn / nn) / rest, 0.0)
