"""Keeps one endpoint's latency curves fitted to what its cell has lately shown (DLB section 3.3).

A fit would stall requests for milliseconds, so it runs one iteration per timer event.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dlbctl.core.fit import CurveFit, FitResult
from dlbctl.core.recovery import Recovery
from dlbctl.core.samples import NOTHING, InFlight, SampleStore

if TYPE_CHECKING:
    from random import Random

    from dlbctl.core.bins import Bin
    from dlbctl.core.curve import Belief, Curve

REST_S = 1.0  # between fits
STEP_S = 0.002  # between iterations of one fit: a step takes some 0.1 ms, so requests hardly notice
# Without new samples there is only more doubt, as the old ones lose weight. So often is often enough to say so.
REFIT_S = 10.0
# The loads of so long ago were those of another time of day, and the cell's servers may be others by now.
EXPIRY_S = 600.0
# A percentile takes far more requests than a mean to change visibly.
TAIL_REST_S = 5.0


class Estimator:
    """Samples in, curves out: of the mean and of the 95th percentile. `reason` says why there is no (newer) curve."""

    __slots__ = (
        "_fitted_s",
        "_fresh",
        "_own",
        "_recovery",
        "_rest_until_s",
        "_running",
        "_sampled_s",
        "_store",
        "_tail_fitted_s",
        "_version",
        "curve",
        "reason",
        "tail",
    )

    def __init__(self, rng: Random) -> None:
        self.curve: Curve | None = None
        self.tail: Curve | None = None
        self.reason = "no request has ended yet"
        self._store = SampleStore(rng)
        self._own: Curve | None = None  # the last curve that only the cell's own samples made
        self._running: Generator[None] | None = None
        self._recovery = Recovery()
        self._fresh = 0
        self._version = 0
        self._sampled_s = 0.0
        self._fitted_s = float("-inf")
        self._tail_fitted_s = float("-inf")
        self._rest_until_s = 0.0

    def __repr__(self) -> str:
        return f"<Estimator {len(self._store)} samples, {self.curve or self.reason}>"

    def add(self, now_s: float, arrived_s: float, load: float, latency_s: float) -> None:
        """Take a request that succeeded: requests per server it met when it arrived, and how long it took."""
        if latency_s > 0.0:
            self._store.add(now_s, arrived_s, load, latency_s)
            self._fresh += 1
            self._sampled_s = now_s

    def explored(self, now_s: float, arrived_s: float, load: float, latency_s: float) -> None:
        """Take a request of the leaf's own, made in place of users who do not come, as if a user had sent it.

        Enough of them that were faster than the curve says prove that the cell is another one now: what is
        remembered of the time before is taken to have been as much faster.
        """
        self.add(now_s, arrived_s, load, latency_s)
        self._recovery.add(arrived_s, load, latency_s)
        found = self._recovery.verdict(now_s, self.curve) if self.curve is not None else None
        if self.curve is not None and found is not None:
            factor, since_s = found
            self._store.revise(now_s, since_s, self.curve, factor)

    def bins(self, now_s: float, in_flight: InFlight = NOTHING) -> list[Bin]:
        """The samples as the fit sees them, for display."""
        return self._store.bins(now_s, in_flight)

    def due(self, now_s: float) -> bool:
        """Whether it is time to begin anew."""
        return self._running is None and now_s >= self._rest_until_s

    def begin(self, now_s: float, in_flight: InFlight = NOTHING, prior: Belief | None = None) -> None:
        """Begin a fit, if there is anything new to find. prior: what is known of such cells from others."""
        self._rest_until_s = now_s + REST_S
        if len(self._store) and now_s - self._sampled_s >= EXPIRY_S:
            self._forget()
        if self._fresh or (now_s - self._fitted_s >= REFIT_S and (len(self._store) or prior)):
            self._fresh = 0
            self._fitted_s = now_s
            self._running = self._fits(now_s, in_flight, prior)

    def work(self, now_s: float) -> float:
        """Do one piece of the fit that was begun; when to call again [s]."""
        if self._running is not None:
            try:
                next(self._running)
            except StopIteration:
                self._running = None
            else:
                return now_s + STEP_S
        return self._rest_until_s

    def _forget(self) -> None:
        self._store.clear()
        self.curve = self.tail = self._own = None
        self.reason = f"no request has ended for {EXPIRY_S:.0f} s"

    def _fits(self, now_s: float, in_flight: InFlight, prior: Belief | None) -> Generator[None]:
        """Fit the cell's own samples; with a prior once more, from there; now and then the percentile too."""
        reduction = self._store.reduction(now_s, in_flight)
        yield
        while not reduction.step():
            yield
        bins = reduction.bins()
        fit = CurveFit(bins, warm=self._own)
        own = yield from _ended(fit)
        self.reason = own.reason
        if own.curve is not None:
            self._own = own.curve
        shrunk = own
        if prior is not None:
            shrunk = yield from _ended(CurveFit(bins, prior, warm=own.curve or self.curve))
        if shrunk.curve is not None:
            self._version += 1
            self.curve = replace(shrunk.curve, version=self._version, own=fit.belief())
        if now_s - self._tail_fitted_s >= TAIL_REST_S:
            self._tail_fitted_s = now_s
            tail = yield from _ended(CurveFit(reduction.tail(), warm=self.tail))
            self.tail = tail.curve or self.tail


def _ended(fit: CurveFit) -> Generator[None, None, FitResult]:
    """A fit's steps, and what it came to."""
    done = False
    while not done:
        done = fit.step()
        yield
    return fit.result()
