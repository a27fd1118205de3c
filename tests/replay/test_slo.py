"""Objectives: what is accepted, and when a request meets them."""

from __future__ import annotations

import pytest

from dlbctl.core.errors import UsageError
from dlbctl.replay.slo import Objective, parse_objective


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=2s,e2e=30s", Objective(2.0, 30.0)),
        ("ttft=250ms", Objective(0.25)),
        ("e2e=1.5m, goodput=0.95", Objective(None, 90.0, 0.95)),
        ("ttft=3", Objective(3.0)),
    ],
)
def test_an_objective_is_limits_and_perhaps_a_share(text: str, expected: Objective) -> None:
    assert parse_objective(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=", "ttft=0s", "ttft=-1s", "ttft=2h", "p99=2s", "ttft=1s,ttft=2s", "goodput=0.9",
     "ttft=1s,goodput=95", "ttft=1s,goodput=nan", "ttft=1s,goodput=x", "ttft=inf"],
)  # fmt: skip
def test_what_is_no_objective_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_objective(text)


def test_every_limit_must_be_kept_and_an_unknown_first_token_keeps_none() -> None:
    objective = Objective(1.0, 10.0)
    assert objective.met(1.0, 10.0)
    assert not objective.met(1.1, 5.0)
    assert not objective.met(0.1, 10.1)
    assert not objective.met(None, 5.0)
    assert Objective(e2e_s=10.0).met(None, 5.0)
