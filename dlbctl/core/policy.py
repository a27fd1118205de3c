"""A policy: a mechanism (how to choose) and a cost (how loaded a target is), written `discrete/latency`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dlbctl.core import costs, mechanisms
from dlbctl.core.errors import ConfigError
from dlbctl.core.registry import Registry

if TYPE_CHECKING:
    from dlbctl.core.curve import Curve

COSTS = Registry(costs, "cost")
MECHANISMS = Registry(mechanisms, "mechanism")


class View(Protocol):
    """What a cost or mechanism may read of a candidate; it never sees the fleet."""

    @property
    def load(self) -> float:
        """n = N/k: requests in flight per server, corrected for what is on its way there."""

    @property
    def tau_s(self) -> float:
        """One-way network latency to the target."""

    @property
    def curve(self) -> Curve | None:
        """The latency curve the target's leaves have learned, if they have one."""

    @property
    def work_s(self) -> float:
        """Waiting work sent to the target and not yet answered."""

    @property
    def weight(self) -> float:
        """Share of a standard server (leaf) or the number of servers (root)."""

    @property
    def cost(self) -> float:
        """The candidate's cost under the policy in force."""


class Cost(NamedTuple):
    """A registered cost. `ready` says whether it can be told for a candidate; if not, `fallback` is used."""

    name: str
    unit: str
    of: Callable[[View], float]
    ready: Callable[[View], bool]
    fallback: str

    @classmethod
    def load(cls, name: str, *, where: str = "policy") -> Cost:
        """Look a cost up by name."""
        module = COSTS.load(name, where=where)
        return cls(name, module.UNIT, module.cost, module.ready, module.FALLBACK)


class Mechanism(Protocol):
    """A registered mechanism: module-level `Mechanism` class of its file, one instance per endpoint."""

    def choose(self, candidates: Sequence[View], rng: random.Random) -> tuple[int, str]:
        """Index of the chosen candidate (at least two are given) and the rule that decided."""


class Policy(NamedTuple):
    """A mechanism and a cost by name."""

    mechanism: str
    cost: str

    def __str__(self) -> str:
        return f"{self.mechanism}/{self.cost}"

    @classmethod
    def parse(cls, text: str, *, where: str = "policy") -> Policy:
        """Read `mechanism/cost`. ConfigError says what there is to choose from."""
        mechanism, slash, cost = text.partition("/")
        if not slash:
            raise ConfigError(
                f"{where}: {text!r} is not a policy",
                hint="write mechanism/cost, for instance discrete/latency",
            )
        MECHANISMS.load(mechanism, where=where)
        COSTS.load(cost, where=where)
        return cls(mechanism, cost)

    def start(self) -> Mechanism:
        """A fresh instance of the mechanism."""
        mechanism: Mechanism = MECHANISMS.load(self.mechanism, where="policy").Mechanism()
        return mechanism
