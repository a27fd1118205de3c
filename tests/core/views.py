"""Candidates as policies see them, and every policy there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlbctl.core.curve import Curve
from dlbctl.core.policy import COSTS, MECHANISMS, Policy, takes_cost

CURVE = Curve(a=0.8, b=0.096, c=6.0, s=1.5, version=1, sd_log_gradient=0.1, samples=100.0)
TAIL = CURVE.scaled(2.0)

BARE = [name for name in MECHANISMS.names() if not takes_cost(name)]
TAKING = [name for name in MECHANISMS.names() if takes_cost(name)]
POLICIES = sorted([*BARE, *(f"{mechanism}/{cost}" for mechanism in TAKING for cost in COSTS.names())])
# To a mechanism a cost is a number, whatever it stands for. So not each has to be seen with each: here it is every
# third pair, along diagonals, which leave no mechanism and no cost out.
COVERING = sorted(
    [
        *BARE,
        *(
            f"{mechanism}/{cost}"
            for row, mechanism in enumerate(TAKING)
            for column, cost in enumerate(COSTS.names())
            if (row + column) % 3 == 0
        ),
    ]
)


@dataclass
class Seen:
    """A candidate as policies see it."""

    load: float = 0.0
    tau_s: float = 0.0
    curve: Curve | None = CURVE
    work_s: float = 0.0
    weight: float = 1.0
    cost: float = 0.0
    name: str = ""
    in_flight: int = 0
    per_token: float = 0.0
    place: int = -1
    prefill_s_per_token: float = 0.0002
    tail: Curve | None = TAIL


@dataclass
class Asked:
    """A request as mechanisms see it."""

    session: int = 0
    extra_tokens: float = 0.0


ANY = Asked()


def views(policy: str, *candidates: Seen) -> list[Seen]:
    """With names of their own and their costs worked out, as the endpoint does before it asks a mechanism."""
    cost = Policy.parse(policy).load_cost()
    assert all(cost.ready(candidate) for candidate in candidates)
    return [
        replace(
            candidate,
            name=candidate.name or f"t{number}",
            place=number,
            cost=cost.of(candidate) if candidate.weight else 0.0,
            per_token=cost.per_token(candidate) if cost.per_token else 0.0,
        )
        for number, candidate in enumerate(candidates)
    ]
