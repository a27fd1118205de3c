"""What a request costs at each candidate: the candidate's cost, and what its prompt adds where the cost knows that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View


def price(candidate: View, request: Demand) -> float:
    """The cost of this request there."""
    return candidate.cost + candidate.per_token * request.extra_tokens


def prices(candidates: Sequence[View], request: Demand) -> list[float]:
    """The cost of this request at each."""
    extra_tokens = request.extra_tokens
    return [candidate.cost + candidate.per_token * extra_tokens for candidate in candidates]
