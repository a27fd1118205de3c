"""`dlbctl policy` as a process: a switch in every router that answers, shown while it lasts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dlbctl.commands.admin_client import connected
from dlbctl.commands.policy import set_policy
from dlbctl.core.errors import UsageError
from dlbctl.core.policy import COSTS, MECHANISMS
from dlbctl.core.snapshot import EndpointRow

from .conftest import MODEL, OTHER, Routers

CONFIGURED = "auto/auto"


def policies(routers: Routers, name: str = MODEL) -> list[tuple[str, str, bool]]:
    """In force, configured and whether they differ by a switch, in each router that has the endpoint."""
    with connected(routers.both) as clients:
        found = [row for client in clients for row in client.read("/v1/endpoints", list[EndpointRow])]
    return [(row.policy, row.configured_policy, row.overridden) for row in found if row.endpoint == name]


def change(routers: Routers, method: str, body: dict[str, str] | None = None) -> None:
    with connected(routers.both) as clients:
        for client in clients:
            client.change(method, f"/v1/policy/{MODEL}", body, list[EndpointRow])


@pytest.fixture
def reverted(routers: Routers) -> Iterator[Routers]:
    """The routers, as configured again at the end."""
    yield routers
    change(routers, "DELETE")


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        (("power-of-d/rif",), "power-of-d/rif"),
        (("--mechanism", "power-of-d"), "power-of-d/auto"),
        (("--cost", "gradient"), "auto/gradient"),
        (("--cost", "work", "--mechanism", "power-of-d"), "power-of-d/work"),
        (("--mechanism", "weighted-random"), "weighted-random"),
    ],
)
def test_a_switch_reaches_every_router(words: tuple[str, ...], policy: str, reverted: Routers) -> None:
    code, out, err = reverted.run("policy", "set", MODEL, *words, "--json", admin=reverted.both)
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert {address: row["policy"] for address, row in rows.items()} == dict.fromkeys(
        (reverted.first, reverted.second), policy
    )
    assert policies(reverted) == [(policy, CONFIGURED, True)] * 2


def test_a_revert_reaches_every_router(reverted: Routers) -> None:
    change(reverted, "PUT", {"cost": "rif"})
    code, out, _ = reverted.run("policy", "revert", MODEL, admin=reverted.both)
    assert (code, out.count(f"{MODEL} is on {CONFIGURED}")) == (0, 2)
    assert policies(reverted) == [(CONFIGURED, CONFIGURED, False)] * 2


def test_drift_is_shown_and_what_the_switch_waits_for(reverted: Routers) -> None:
    code, out, _ = reverted.run("policy", "set", OTHER, "--cost", "gradient")
    assert (code, out.startswith(f"{reverted.first}: {OTHER} is on auto/gradient")) == (0, True)
    _, out, _ = reverted.run("policy", "show")
    assert f"* {OTHER}: switched live; `dlbctl policy revert` undoes it" in out
    line = next(line for line in out.splitlines() if line.startswith(OTHER))
    assert line.split()[1:4] == ["auto/gradient", "*", CONFIGURED]
    assert reverted.run("policy", "revert", OTHER).code == 0
    assert "switched live" not in reverted.run("policy", "show").out


def test_none_is_touched_when_one_lacks_the_endpoint(routers: Routers) -> None:
    for words in (("set", OTHER, "power-of-d/rif"), ("revert", OTHER)):
        code, out, err = routers.run("policy", *words, admin=routers.both)
        assert (code, out) == (1, "")
        assert f"the router at {routers.second} has no endpoint {OTHER!r}" in err
        assert f"it has: {MODEL}" in err
    assert policies(routers, OTHER) == [(CONFIGURED, CONFIGURED, False)]


def test_those_that_answer_are_switched_and_the_others_named(reverted: Routers) -> None:
    gone = "unix:/gone.sock"
    admin = f"{gone},{reverted.first},{gone}.too,{reverted.second}"
    code, out, err = reverted.run("policy", "set", MODEL, "power-of-d/rif", "--json", admin=admin)
    assert (code, list(json.loads(out))) == (4, [reverted.first, reverted.second])
    assert f"the router at {gone} does not answer" in err
    assert f"the router at {gone}.too does not answer" in err
    assert policies(reverted) == [("power-of-d/rif", CONFIGURED, True)] * 2
    code, out, _ = reverted.run("policy", "revert", MODEL, admin=admin)
    assert (code, out.count(f"{MODEL} is on {CONFIGURED}")) == (4, 2)


def test_where_none_answers_nothing_is_shown(routers: Routers) -> None:
    for words in ((), ("--json",)):
        assert routers.run("policy", "revert", MODEL, *words, admin="unix:/gone.sock")[:2] == (4, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "--mechanism and/or --cost"),
        ({"policy": ""}, "--mechanism and/or --cost"),
        ({"policy": "discrete/rif", "cost": "rif"}, "--mechanism and/or --cost"),
        ({"policy": "discrete/nope"}, "no cost 'nope'"),
        ({"policy": "discrete"}, "is not a policy"),
        ({"mechanism": "nope"}, "--mechanism: there is no mechanism 'nope'"),
        ({"cost": "nope"}, "--cost: there is no cost 'nope'"),
        ({"mechanism": "weighted-random", "cost": "rif"}, "--cost: weighted-random takes no cost"),
    ],
)
def test_a_policy_that_is_none_is_wrong_usage_and_asks_no_router(words: dict[str, str], said: str) -> None:
    given = {"policy": None, "mechanism": None, "cost": None, **words}
    with pytest.raises(UsageError) as caught:
        set_policy(MODEL, admin="unix:/nobody.sock", as_json=False, **given)
    assert said in caught.value.message


def test_what_policies_are_made_of_is_listed_without_a_router(routers: Routers) -> None:
    code, out, _ = routers.run("policy", "list", "--json")
    assert code == 0
    listed = json.loads(out)
    assert (set(listed["mechanisms"]), set(listed["costs"])) == (set(MECHANISMS.names()), set(COSTS.names()))
    assert "weighted-random" in listed["without_cost"]
    assert "discrete" not in listed["without_cost"]
    _, out, _ = routers.run("policy", "list")
    assert all(f"  {name} " in out for name in [*MECHANISMS.names(), *COSTS.names()])
