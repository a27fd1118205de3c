"""What the engines' own model makes of the requests that a cell was sent: the reference for its latency curve.

Each server's model is driven in virtual time (`dlbctl.engine.sweep.drive`) with what that server received and when.
So the mix of requests, their arrival in batches, the prefix cache's hits and the leaf's choices are those of the
run, and whatever else the run had in it (HTTP, relays, busy event loops, clocks, the fit) is not. A model in which
the leaf chose anew would not do: a cell is sent more when it is idle, and only the choices of the run fit that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dlbctl.engine.model import EngineModel
from dlbctl.engine.profile import Profile
from dlbctl.engine.prompt import chat_text, from_text
from dlbctl.engine.sweep import Arrival, LoadBin, Sample, by_in_flight, drive
from dlbctl.replay.outcome import Outcome
from dlbctl.replay.prompts import PromptBuilder
from dlbctl.replay.trace import Row


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request as a server of the cell got it, and the latency that its client saw beyond the network's."""

    server: str
    arrival: Arrival
    latency_s: float


@dataclass(frozen=True, slots=True)
class CellReference:
    """The model's samples in order of arrival (`in_flight`: in the whole cell), and what the clients saw."""

    samples: list[Sample]
    seen_s: list[float]
    servers: int

    def by_load(self, *, bins: int) -> list[tuple[float, LoadBin]]:
        """Load [requests in flight per server] and means, in bins of as equal a number of samples as ties allow."""
        return [(one.in_flight / self.servers, one) for one in by_in_flight(self.samples, bins)]


def deliveries(
    outcomes: Iterable[Outcome], rows: dict[int, Row], block_tokens: int, one_way_s: dict[tuple[str, str], float]
) -> dict[str, list[Delivery]]:
    """What each cell was sent, in order of arrival there. one_way_s: the delay from a root to a cell."""
    prompts = PromptBuilder()
    sent: dict[str, list[Delivery]] = defaultdict(list)
    for outcome in outcomes:
        assert outcome.cell is not None
        assert outcome.server is not None
        assert outcome.sent_s is not None
        assert outcome.completion_tokens is not None
        prompt = from_text(chat_text([("user", prompts.build(rows[outcome.line]).decode())]), block_tokens)
        assert prompt.tokens == outcome.prompt_tokens, "the prompt is not the one that was sent"
        delay_s = one_way_s.get((str(outcome.target), outcome.cell), 0.0)
        arrival = Arrival(outcome.sent_s + delay_s, prompt.tokens, outcome.completion_tokens, prompt.block_hashes)
        seen_s = outcome.end_s - outcome.sent_s - 2 * delay_s
        sent[outcome.cell].append(Delivery(outcome.server, arrival, seen_s))
    return {cell: sorted(some, key=lambda one: one.arrival.at_s) for cell, some in sent.items()}


def reference(sent: Sequence[Delivery], profile: Profile, *, time_factor: float) -> CellReference:
    """Drive the model of each server of a cell with what it was sent."""
    servers: dict[str, list[Delivery]] = defaultdict(list)
    for one in sent:
        servers[one.server].append(one)
    pairs = [
        (one, sample)
        for some in servers.values()
        for one, sample in zip(
            some, drive(EngineModel(profile, time_factor=time_factor), (d.arrival for d in some)), strict=True
        )
    ]
    pairs.sort(key=lambda pair: pair[1].at_s)
    return CellReference(
        list(_in_cell([sample for _, sample in pairs])), [one.latency_s for one, _ in pairs], len(servers)
    )


def _in_cell(samples: Sequence[Sample]) -> Iterator[Sample]:
    """The same samples with the requests that were in flight in the whole cell when each arrived."""
    ends_s = sorted(sample.at_s + sample.latency_s for sample in samples)
    for earlier, sample in enumerate(samples):
        in_flight = earlier - bisect_right(ends_s, sample.at_s)
        yield Sample(sample.at_s, in_flight, sample.latency_s, sample.ttft_s)
