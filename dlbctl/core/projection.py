"""The projection onto the simplex: the shares nearest to what a step has made of them."""

from __future__ import annotations


def onto_simplex(values: list[float]) -> list[float]:
    """The nearest point of the simplex: of coordinates that are non-negative and sum to 1.

    values: finite or -inf, at least one finite. By sorting: x = max(v - theta, 0), with theta such that x sums to 1
    (Condat 2016, DLB's reference 7, compares this with other ways). A value of -inf gets exactly 0, as any does that
    is more than 1 below the greatest. Only distances from the greatest are summed, so large values cost no digits.
    """
    greatest = max(values)
    depths = sorted([greatest - value for value in values])
    theta = 0.0  # counted from the greatest down, as depths are
    total = 0.0
    for index, depth in enumerate(depths):
        total += depth
        level = (total + 1.0) / (index + 1)
        if depth >= level:
            break
        theta = level
    return [max(theta - (greatest - value), 0.0) for value in values]


def downhill(shares: list[float], heights: list[float], length: float) -> list[float]:
    """Proj(x - length h): shares moved some way from what is high to what is low. length > 0; h may be infinite."""
    return onto_simplex([share - length * height for share, height in zip(shares, heights, strict=True)])
