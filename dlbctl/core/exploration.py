"""When a leaf tries an endpoint by itself: it is asked for elsewhere, and hardly any of that comes here.

A cell that was slow is sent nothing, so nothing would show that it has recovered. The leaf finds out, because what it
sends never leaves its cell, whatever is asked for where, and because no root has to agree with another about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dlbctl.core.endpoint import DECODE_S_PER_TOKEN, PREFILL_S_PER_TOKEN
from dlbctl.core.events import Explore
from dlbctl.core.exchange import NEVER

if TYPE_CHECKING:
    from dlbctl.core.endpoint import Endpoint
    from dlbctl.core.events import Usage
    from dlbctl.core.exchange import Exchange
    from dlbctl.core.news import Heard

# Less than this comes here of an endpoint that is starved, while all roots together are asked for more than that.
STARVED_RPS: Final = 0.2
WANTED_RPS: Final = 0.5
# A synthetic request is no larger: it is there to be short, and what it takes is scaled.
PROMPT_TOKENS_MAX: Final = 512.0
OUTPUT_TOKENS_MAX: Final = 64.0
# What is usual is the mean of so many requests: it stands still while none come, with whatever error it has by then.
USUAL_OF: Final = 200


class Exploration:
    """Of one endpoint at a leaf: what its users' requests are like, and when the next of the leaf's own may be made."""

    __slots__ = ("_due_s", "_learned", "_output_tokens", "_prompt_tokens", "_shown")

    def __init__(self) -> None:
        self._due_s = 0.0
        self._shown = False  # a user has shown what is taken here
        self._learned = 0
        self._prompt_tokens = 0.0  # without those the server had cached
        self._output_tokens = 0.0

    def __repr__(self) -> str:
        usual = f"{self._prompt_tokens:.0f} + {self._output_tokens:.0f} tokens"
        return f"<Exploration of {usual}, not before {self._due_s:.3f} s>"

    def learn(self, exchange: Exchange, usage: Usage | None) -> None:
        """A user's request went well."""
        self._shown = True
        if self._learned < USUAL_OF:
            self._learned += 1
        prompt_tokens, output_tokens = _tokens(exchange, usage)
        self._prompt_tokens += (prompt_tokens - self._prompt_tokens) / self._learned
        self._output_tokens += (output_tokens - self._output_tokens) / self._learned

    def refused(self) -> None:
        """The server says that a request of ours is none: nothing more is sent until a user shows how it is done."""
        self._shown = False

    def due(self, now_s: float, endpoint: Endpoint, heard: Heard) -> Explore | None:
        """The request to be made now, if any."""
        rate_rps = endpoint.settings.exploration.probe_rps
        if not self._shown or rate_rps <= 0.0 or now_s < self._due_s:
            return None
        if endpoint.in_flight or endpoint.queue or endpoint.demand.rate(now_s) >= STARVED_RPS:
            return None
        if heard.rate_rps(now_s, endpoint.name) < WANTED_RPS:
            return None
        self._due_s = now_s + 1.0 / rate_rps
        prompt_tokens = min(self._prompt_tokens, PROMPT_TOKENS_MAX)
        output_tokens = min(self._output_tokens, OUTPUT_TOKENS_MAX)
        return Explore(endpoint.name, max(1, round(prompt_tokens)), max(1, round(output_tokens)))

    def next_s(self, now_s: float) -> float:
        """When to look again; a starved endpoint is found by the timer's own beat."""
        return self._due_s if self._due_s > now_s else NEVER

    def as_usual(self, latency_s: float, exchange: Exchange, usage: Usage | None) -> float:
        """How long a user's request would have taken where one of ours took so long: by the work in each.

        At a cell that hardly gets any nothing queues, so time goes with work; and a curve of requests that are shorter
        than users' would draw to the cell what it cannot bear.
        """
        usual_s = _work_s(self._prompt_tokens, self._output_tokens)
        return latency_s * usual_s / _work_s(*_tokens(exchange, usage))


def _tokens(exchange: Exchange, usage: Usage | None) -> tuple[float, float]:
    """Prompt tokens that had to be read and tokens made: as the server counted them, or else as expected."""
    if usage is None or usage.prompt_tokens <= 0:
        return exchange.prompt_tokens, exchange.output_tokens
    return float(max(usage.prompt_tokens - usage.cached_tokens, 0)), float(usage.completion_tokens)


def _work_s(prompt_tokens: float, output_tokens: float) -> float:
    # At least a token, so that it can be divided by.
    return PREFILL_S_PER_TOKEN * max(prompt_tokens, 1.0) + DECODE_S_PER_TOKEN * output_tokens
