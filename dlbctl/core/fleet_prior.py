"""What a root knows of a cell's curve from those of other cells with the same hardware: the prior of its leaves' fits.

DLB section 3.3 names the shrinkage. Cells differ, and by how much is seen from the spread of their estimates beyond
what their own errors make: sigma_p^2 = max(floor^2, var(theta) - mean SE^2), around their mean. A cell's own estimate
is no part of its prior, and no estimate that was itself shrunk to the fleet is: leaves report both (`Curve.own`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlbctl.core.curve import Belief
from dlbctl.core.fit import WEAK_SD

if TYPE_CHECKING:
    from dlbctl.core.target import Candidate

# Two cells give a mean and a guess of the spread; one gives neither.
OTHERS_MIN = 2
# No two cells are alike to less than this, whatever a few estimates look like.
SD_MIN = 0.1
WORKED_OUT_S = 1.0
_WEAK_PRECISION = np.array(WEAK_SD) ** -2.0


class HardwareClass:
    """Cells of the same hardware by name, each with its own estimate if it has one, and what the others say of it."""

    def __init__(self, own: Mapping[str, Belief | None]) -> None:
        known = {name: belief for name, belief in own.items() if belief is not None}
        self._place = {name: place for place, name in enumerate(known)}
        theta = np.array([belief.mean for belief in known.values()]).reshape(-1, 4)
        error_sq = np.array([belief.sd for belief in known.values()]).reshape(-1, 4) ** 2
        samples_alone = np.maximum(1.0 / error_sq - _WEAK_PRECISION, 0.0)
        terms = np.stack((theta, theta**2, error_sq, samples_alone))
        whole = terms.sum(axis=1, keepdims=True)
        self._stranger = _among(whole, len(known))
        self._members = _among(whole - terms, len(known) - 1)

    def __repr__(self) -> str:
        return f"<HardwareClass, {len(self._place)} cells have a curve>"

    def prior(self, cell: str) -> Belief | None:
        """The belief about a cell, whether or not it has an estimate; None where fewer than two others have one."""
        place = self._place.get(cell)
        found = self._stranger if place is None else self._members
        if found is None:
            return None
        mean, sd = found[:, place or 0].tolist()
        return Belief(tuple(mean), tuple(sd))


class FleetPriors:
    """The priors of one endpoint's cells, worked out once a second at most."""

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._class_of: dict[str, HardwareClass] = {}

    def __repr__(self) -> str:
        return f"<FleetPriors of {len(self._class_of)} cells>"

    def of(self, now_s: float, cell: str, candidates: Iterable[Candidate]) -> Belief | None:
        """The prior of one cell among all of the endpoint's."""
        if now_s >= self._due_s:
            self._due_s = now_s + WORKED_OUT_S
            self._class_of = _classes(candidates)
        alike = self._class_of.get(cell)
        return alike.prior(cell) if alike is not None else None


def _classes(candidates: Iterable[Candidate]) -> dict[str, HardwareClass]:
    """The class of each cell."""
    named: dict[str, dict[str, Belief | None]] = {}
    for candidate in candidates:
        own = candidate.learned.own if candidate.learned is not None else None
        named.setdefault(candidate.target.settings.hardware, {})[candidate.name] = own
    classes = [(HardwareClass(own), own) for own in named.values()]
    return {cell: alike for alike, own in classes for cell in own}


def _among(sums: NDArray[np.float64], count: int) -> NDArray[np.float64] | None:
    """Means and SDs of beliefs, from the sums over so many cells of four terms: see `HardwareClass`."""
    if count < OTHERS_MIN:
        return None
    theta, theta_sq, error_sq, samples_alone = sums
    mean = theta / count
    spread_sq = (theta_sq - count * mean**2) / (count - 1)
    between_sq = np.maximum(spread_sq - error_sq / count, SD_MIN**2)
    # A spread seen in few is uncertain, and so is their mean, of which the weak prior's part counts only once.
    sd = np.sqrt(between_sq * (count + 1) / (count - 1) + 1.0 / (samples_alone + _WEAK_PRECISION))
    return np.stack((mean, sd))
