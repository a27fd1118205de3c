"""`discrete` among many cells keeps their costs in order; what it chooses is what a look at all would."""

from __future__ import annotations

from random import Random

import pytest

from dlbctl.core import snapshot
from dlbctl.core.events import Arrival, EndpointState, Forward, State
from dlbctl.core.mechanisms.discrete import FEW
from dlbctl.core.policy import Policy
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from tests.core.views import Asked, Seen

CELLS = 3 * FEW


def fleet(seed: int) -> Tier:
    targets = tuple(TargetSettings(f"c{n}", (f"http://c{n}:1",)) for n in range(CELLS))
    tier = Tier(TierSettings("root", "here", targets, (EndpointSettings("m", "discrete/rif"),), seed=seed), "b00t")
    for number in range(CELLS):
        report(tier, number, 50)
    return tier


def report(tier: Tier, number: int, rif: int, k: float = 10.0) -> None:
    line = State(endpoints={"m": EndpointState(rif=rif, k=k)})
    tier.state_reported(0.0, f"c{number}", f"http://c{number}:1", line, 0.01)


def choose(tier: Tier) -> tuple[str, str]:
    action = tier.arrived(0.0, Arrival("id", "m"))
    assert isinstance(action, Forward)
    assert action.exchange.candidate is not None
    return action.exchange.candidate.name, action.rule


@pytest.mark.parametrize("seed", range(3))
def test_it_chooses_a_least_cost_however_many_cells_changed_and_came_and_went(seed: int) -> None:
    rng, tier = Random(seed), fleet(seed)
    for _ in range(150):
        for number in rng.sample(range(CELLS), rng.choice([0, 1, 3, CELLS])):
            report(tier, number, rng.randrange(40, 60), rng.choice([0.0, 10.0, 10.0, 10.0, 20.0]))
        if rng.random() < 0.1:
            tier.address_changed(0.0, "c1", "http://c1:1", rng.random() < 0.5)
        before = costs(tier)
        name, rule = choose(tier)
        least = min(before.values())
        near = [cell for cell, cost in before.items() if cost <= 1.01 * least]
        assert name in near
        assert rule == ("tie" if len(near) > 1 else "least-cost")


def costs(tier: Tier) -> dict[str, float]:
    return {row.cell: row.cost for row in snapshot.cells(tier, 0.0) if row.routable and row.cost is not None}


@pytest.mark.parametrize("spread", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize("cheapest", [0.0, 0.5])
def test_what_a_prompt_adds_is_looked_at_where_it_can_decide(spread: float, cheapest: float) -> None:
    """Beside a mechanism that looks at all: the same choices of the same ties, for requests of any size."""
    rng = Random(7)
    given = [
        Seen(
            cost=cheapest + rng.choice([0.3, 1.0]) * rng.random(),
            per_token=spread * rng.random(),
            place=n,
            name=f"c{n}",
        )
        for n in range(CELLS)
    ]
    ordered, plain = Policy.parse("discrete/unified").start(), Policy.parse("discrete/unified").start()
    ordered.among(given)
    dice = Random(9), Random(9)
    for _ in range(300):
        changed = rng.sample(given, rng.choice([0, 1, 5, 20]))
        for one in changed:
            one.cost, one.per_token = cheapest + rng.random(), spread * rng.random()
        ordered.changed(changed)
        request = Asked(extra_tokens=rng.choice([-400.0, 0.0, 30.0, 3000.0]))
        chosen = ordered.choose(0.0, given, request, dice[0])
        assert chosen == plain.choose(0.0, list(given), request, dice[1])


def test_to_look_at_it_changes_nothing_that_it_decides() -> None:
    """Costs are worked out when somebody looks, so in other portions than without a look."""

    def run(*, looked_at: bool) -> list[tuple[str, str]]:
        rng, tier, chosen = Random(5), fleet(5), []
        for _ in range(200):
            for number in rng.sample(range(CELLS), 20):
                report(tier, number, rng.randrange(45, 55))
                if looked_at:
                    snapshot.cells(tier, 0.0)
            chosen.append(choose(tier))
        return chosen

    assert run(looked_at=True) == run(looked_at=False)
