"""A policy: a mechanism (how to choose) and a cost (how loaded a target is), written `discrete/latency`.

A mechanism that looks at no cost, or has its own, is a policy by itself: `weighted-random`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dlbctl.core import costs, mechanisms
from dlbctl.core.errors import ConfigError
from dlbctl.core.names import did_you_mean
from dlbctl.core.registry import Registry

if TYPE_CHECKING:
    from dlbctl.core.curve import Curve
    from dlbctl.core.mechanism import Mechanism

COSTS = Registry(costs, "cost")
MECHANISMS = Registry(mechanisms, "mechanism")


class View(Protocol):
    """What a cost or mechanism may read of a candidate; it never sees the fleet."""

    @property
    def name(self) -> str:
        """The target's name, by which it is known again."""

    @property
    def load(self) -> float:
        """n = N/k: requests in flight per server, what is on its way there included if the mechanism wants it."""

    @property
    def tau_s(self) -> float:
        """One-way network latency to the target."""

    @property
    def curve(self) -> Curve | None:
        """The latency curve the target's leaves have learned, if they have one; dithered, if the mechanism allows."""

    @property
    def tail(self) -> Curve | None:
        """The same of the 95th percentile."""

    @property
    def prefill_s_per_token(self) -> float:
        """How long a prompt token takes to be read there, as its leaves have learned; 0 where that is not known."""

    @property
    def work_s(self) -> float:
        """Waiting work sent to the target and not yet answered."""

    @property
    def weight(self) -> float:
        """k: servers in the cell as it last reported (root); what the server counts for, less as it starts (leaf)."""

    @property
    def in_flight(self) -> int:
        """This router's own requests there."""

    @property
    def cost(self) -> float:
        """The candidate's cost under the policy in force, of a request of usual size."""

    @property
    def per_token(self) -> float:
        """What a prompt token more than usual adds to the cost; 0 with costs that are the same for all requests."""

    @property
    def place(self) -> int:
        """Where it stands among all that are routable; what it is otherwise says nothing."""


class Demand(Protocol):
    """What a mechanism may read of the request that it chooses for."""

    @property
    def session(self) -> int:
        """A hash of the client's session; 0 where it has told none."""

    @property
    def extra_tokens(self) -> float:
        """How many prompt tokens more than usual it has."""


class CellView(View, Protocol):
    """What a mechanism that plans for all roots may read of a cell besides."""

    @property
    def capacity_rps(self) -> float:
        """Requests per second that one server takes, as configured or else as the curve has it; 0 if unknown."""

    @property
    def arrivals(self) -> dict[str, float]:
        """Requests per second that come there from each cell with roots."""

    @property
    def sources(self) -> dict[str, float]:
        """One-way delay [s] from each cell whose roots may send there."""


class Cost(NamedTuple):
    """A registered cost.

    ready: whether it can be told for a candidate; if not, `fallback` is used, for want of `needs`. per_token: what each
    prompt token of a request adds at a candidate, of costs that know. can_be_zero: an idle candidate costs nothing, so
    that differences between costs say something and their ratios do not.
    """

    name: str
    unit: str
    of: Callable[[View], float]
    ready: Callable[[View], bool]
    fallback: str
    needs: str = ""
    per_token: Callable[[View], float] | None = None
    can_be_zero: bool = False

    @classmethod
    def load(cls, name: str, *, where: str = "policy") -> Cost:
        """Look a cost up by name."""
        module = COSTS.load(name, where=where)
        return cls(
            name,
            module.UNIT,
            module.cost,
            module.ready,
            module.FALLBACK,
            module.NEEDS,
            getattr(module, "per_token", None),
            getattr(module, "CAN_BE_ZERO", False),
        )


# What stands in for a cost where the mechanism looks at none.
NO_COST: Final = Cost("", "", lambda _: 0.0, lambda _: True, "")


def takes_cost(mechanism: str, *, where: str = "policy") -> bool:
    """Whether policies with this mechanism name a cost. ConfigError where there is no such mechanism."""
    own: str | None = MECHANISMS.load(mechanism, where=where).Mechanism.COST
    return own is None


class Policy(NamedTuple):
    """A mechanism and a cost by name; an empty cost with a mechanism that takes none."""

    mechanism: str
    cost: str

    def __str__(self) -> str:
        return f"{self.mechanism}/{self.cost}" if self.cost else self.mechanism

    @classmethod
    def parse(cls, text: str, *, where: str = "policy") -> Policy:
        """Read `mechanism/cost`, or a mechanism that takes none. ConfigError says what there is to choose from."""
        mechanism, slash, cost = text.partition("/")
        if not slash and mechanism not in MECHANISMS.names():
            usual = f"write mechanism/cost, for instance discrete/latency, or one of: {', '.join(_bare())}"
            raise ConfigError(
                f"{where}: {text!r} is not a policy", hint=did_you_mean(text, _written(), otherwise=usual)
            )
        if not takes_cost(mechanism, where=where):
            if slash:
                raise ConfigError(f"{where}: {mechanism} takes no cost", hint=f"write {mechanism} alone")
            return cls(mechanism, "")
        if not slash:
            raise ConfigError(
                f"{where}: {text!r} is not a policy: it needs a cost",
                hint=f"write mechanism/cost: {', '.join(f'{mechanism}/{name}' for name in COSTS.names())}",
            )
        COSTS.load(cost, where=where)
        return cls(mechanism, cost)

    def switched(self, mechanism: str, cost: str) -> Policy:
        """This policy with another mechanism, another cost or both; empty for the same. ConfigError if it is none."""
        if mechanism and not (cost or takes_cost(mechanism)):
            return Policy(mechanism, "")
        return Policy.parse("/".join(filter(None, (mechanism or self.mechanism, cost or self.cost))))

    def start(self) -> Mechanism:
        """A fresh instance of the mechanism."""
        mechanism: Mechanism = MECHANISMS.load(self.mechanism, where="policy").Mechanism()
        return mechanism

    def load_cost(self) -> Cost:
        """The cost, the mechanism's own where it has one, or what stands in for one."""
        cost = self.cost or MECHANISMS.load(self.mechanism, where="policy").Mechanism.COST
        return Cost.load(cost) if cost else NO_COST


def _written() -> list[str]:
    """All policies, for who has missed one."""
    bare = _bare()
    pairs = product((name for name in MECHANISMS.names() if name not in bare), COSTS.names())
    return [*bare, *(f"{mechanism}/{cost}" for mechanism, cost in pairs)]


def _bare() -> list[str]:
    """The mechanisms that are policies by themselves."""
    return [name for name in MECHANISMS.names() if not takes_cost(name)]
