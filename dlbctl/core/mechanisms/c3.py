"""Send each request to the least of C3's scores: how long others waited there, and the cube of the queue.

Suresh et al., NSDI 2015, the ranking of replicas by R - 1/mu + q^3/mu; its rate control is not here. R is the mean of
the latencies that this router has seen there, network included. The queue is q = 1 + N/k: the paper estimates what its
clients hear late, by a client's own outstanding requests times the number of clients and a mean of reported queues;
here reports are milliseconds old and count the requests of all routers. Servers do not tell how long they serve:
1/mu = R/q with the mean q that requests met, as of a queue served one by one. A target that has not answered yet is
taken for average.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from dlbctl.core import mechanism
from dlbctl.core.decay import Average
from dlbctl.core.least import any_least

if TYPE_CHECKING:
    from dlbctl.core.policy import Demand, View

# Of the latest sample in a mean. The paper names none.
WEIGHT: Final = 0.1


class Known:
    """What was seen of one target: mean latency [s], 0 before the first, and the mean queue that requests joined."""

    def __init__(self, queue: float) -> None:
        self.latency_s = Average(0.0, WEIGHT)
        self.queue = Average(queue, WEIGHT)

    def __repr__(self) -> str:
        return f"<Known {self.latency_s.value:.4g} s in a queue of {self.queue.value:.4g}>"

    @property
    def service_s(self) -> float:
        """1/mu; 0 before the first answer."""
        return self.latency_s.value / self.queue.value


class Mechanism(mechanism.Mechanism):
    """Least score; it keeps means by name."""

    COST: ClassVar[str | None] = ""
    OBSERVES: ClassVar[bool] = True

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def among(self, candidates: Sequence[View]) -> None:
        """Forget those that are gone."""
        names = {candidate.name for candidate in candidates}
        self._known = {name: known for name, known in self._known.items() if name in names}

    def observed(self, now_s: float, candidate: View, latency_s: float) -> None:  # noqa: ARG002
        """Learn from an answer."""
        known = self._known.get(candidate.name)
        if known is None:
            return  # it was gone meanwhile, or the only one so far
        if known.latency_s.value == 0.0:
            known.latency_s.value = latency_s
        known.latency_s.add(latency_s)

    def choose(
        self,
        now_s: float,  # noqa: ARG002
        candidates: Sequence[View],
        request: Demand,  # noqa: ARG002
        rng: random.Random,
    ) -> tuple[int, str]:
        """Index of a candidate with the least score and the rule: `least-score` or `tie`."""
        index, only = any_least(self._scores(candidates), rng)
        self._joined(candidates[index])
        return index, "least-score" if only else "tie"

    def _scores(self, candidates: Sequence[View]) -> list[float]:
        known = [self._known.get(candidate.name) for candidate in candidates]
        answered = [one.service_s for one in known if one is not None and one.latency_s.value > 0.0]
        usual_s = sum(answered, 0.0) / len(answered) if answered else 1.0
        return [
            score(candidate.load + 1.0, one.latency_s.value, one.service_s)
            if one is not None and one.latency_s.value > 0.0
            else score(candidate.load + 1.0, usual_s, usual_s)
            for candidate, one in zip(candidates, known, strict=True)
        ]

    def _joined(self, candidate: View) -> None:
        """A request goes there, and finds the queue as it is."""
        known = self._known.get(candidate.name)
        if known is None:
            self._known[candidate.name] = Known(candidate.load + 1.0)
        else:
            known.queue.add(candidate.load + 1.0)


def score(queue: float, latency_s: float, service_s: float) -> float:
    """R - 1/mu + q^3/mu [s]."""
    return latency_s - service_s + queue * queue * queue * service_s
