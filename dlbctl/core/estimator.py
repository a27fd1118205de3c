"""Keeps one endpoint's latency curve fitted to what its cell has lately shown (DLB section 3.3).

A fit would stall requests for milliseconds, so it runs one iteration per timer event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbctl.core.fit import CurveFit
from dlbctl.core.samples import Bin, SampleStore

if TYPE_CHECKING:
    from random import Random

    from dlbctl.core.curve import Curve

REST_S = 1.0  # between fits
STEP_S = 0.002  # between iterations of one fit: a step takes some 0.1 ms, so requests hardly notice


class Estimator:
    """Samples in, a curve out. `reason` says why there is no (newer) curve."""

    __slots__ = ("_fit", "_fresh", "_rest_until_s", "_store", "curve", "reason")

    def __init__(self, rng: Random) -> None:
        self.curve: Curve | None = None
        self.reason = "no request has ended yet"
        self._store = SampleStore(rng)
        self._fit: CurveFit | None = None
        self._fresh = 0
        self._rest_until_s = 0.0

    def __repr__(self) -> str:
        return f"<Estimator {len(self._store)} samples, {self.curve or self.reason}>"

    def add(self, now_s: float, load: float, latency_s: float) -> None:
        """Take a request that succeeded: requests per server it met, and how long it took from arrival to end."""
        if latency_s > 0.0:
            self._store.add(now_s, load, latency_s)
            self._fresh += 1

    def bins(self, now_s: float) -> list[Bin]:
        """The samples as the fit sees them, for display."""
        return self._store.bins(now_s)

    def work(self, now_s: float) -> float:
        """Do one piece of work if it is due; when to call again [s]."""
        if self._fit is not None:
            return self._step(now_s, self._fit)
        if now_s >= self._rest_until_s:
            self._rest_until_s = now_s + REST_S
            if self._fresh:
                self._fresh = 0
                self._fit = CurveFit(self._store.bins(now_s), warm=self.curve)
                return now_s + STEP_S
        return self._rest_until_s

    def _step(self, now_s: float, fit: CurveFit) -> float:
        if not fit.step():
            return now_s + STEP_S
        self._fit = None
        result = fit.result()
        self.reason = result.reason
        if result.curve is not None:
            self.curve = result.curve
        return self._rest_until_s
