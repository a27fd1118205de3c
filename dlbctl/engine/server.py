"""One engine behind HTTP: routes, and what becomes of a request for text."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from dlbctl.engine import openai_api
from dlbctl.engine.answers import Form, StreamedAnswer, WholeAnswer
from dlbctl.engine.connection import Connection
from dlbctl.engine.faults import Faults
from dlbctl.engine.metrics import EngineMetrics, Flavor
from dlbctl.engine.model import EngineModel
from dlbctl.engine.openai_api import ApiError, ChatRequest, CompletionRequest
from dlbctl.engine.runner import Runner

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from dlbctl.engine.connection import Exchange
    from dlbctl.engine.lag import LoopLag
    from dlbctl.engine.model import Sequence
    from dlbctl.engine.openai_api import Generation
    from dlbctl.engine.profile import Profile
    from dlbctl.engine.runner import Reader

_JSON = "application/json"
_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine behaves, beyond its profile.

    stream_interval: tokens in one event of a stream. queue_limit: requests that may wait; more are
    answered 503. time_factor: everything so many times faster.
    """

    model: str = "embedded"
    flavor: Flavor = "vllm"
    time_factor: float = 1.0
    stream_interval: int = 1
    queue_limit: int = 256
    seed: int = 0
    faults: Faults = field(default_factory=Faults)


class EngineServer:
    """An engine model, its runner and its HTTP routes."""

    def __init__(self, profile: Profile, options: EngineOptions, loop: asyncio.AbstractEventLoop, lag: LoopLag) -> None:
        self.requests = 0
        self.crashed: asyncio.Future[None] = loop.create_future()
        """Done when `crash_after` has struck."""
        self.model = EngineModel(profile, time_factor=options.time_factor, queue_limit=options.queue_limit)
        self.metrics = EngineMetrics(self.model, lag, served_model=options.model, flavor=options.flavor)
        self._runner = Runner(self.model, loop, self.metrics.on_ended)
        self._options = options
        self._loop = loop
        self._rng = random.Random(options.seed)  # noqa: S311 - lengths of answers and dice for faults
        self._started = int(time.time())
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._set_faults(options.faults)
        self._routes: dict[str, tuple[str, Callable[[Exchange], None]]] = {
            "/v1/chat/completions": ("POST", lambda exchange: self._generate(exchange, ChatRequest)),
            "/v1/completions": ("POST", lambda exchange: self._generate(exchange, CompletionRequest)),
            "/v1/models": ("GET", self._list_models),
            "/health": ("GET", lambda exchange: exchange.reply(200, "text/plain", b"")),
            "/metrics": ("GET", self._show_metrics),
            "/debug/faults": ("POST", self._change_faults),
        }

    def __repr__(self) -> str:
        return f"<EngineServer {self._options.model}: {self._runner!r}, {len(self._connections)} connections>"

    async def listen(self, sock: socket.socket) -> None:
        """Serve a bound socket."""
        self._listener = await self._loop.create_server(
            lambda: Connection(self, self._connections), sock=sock, backlog=1024
        )

    def stop(self) -> None:
        """Close the listener and cut all connections."""
        if self._listener is not None:
            self._listener.close()
        self._runner.stop()
        self._cut_connections()

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if self._faults.down and exchange.path != "/debug/faults":
            exchange.reset()
            return
        try:
            self._route(exchange)
        except ApiError as error:
            retry = f"retry-after: {error.retry_after_s}\r\n" if error.retry_after_s else ""
            exchange.reply(error.status, _JSON, error.body(), retry)

    def _route(self, exchange: Exchange) -> None:
        if exchange.path not in self._routes:
            raise ApiError(404, f"no such path: {exchange.path}")
        method, answer = self._routes[exchange.path]
        if exchange.method != method and (exchange.method, method) != ("HEAD", "GET"):
            raise ApiError(405, f"{exchange.path} takes {method}, not {exchange.method}")
        answer(exchange)

    def _list_models(self, exchange: Exchange) -> None:
        limit = self.model.profile.max_model_tokens
        exchange.reply(200, _JSON, openai_api.models(self._options.model, self._started, limit))

    def _show_metrics(self, exchange: Exchange) -> None:
        exchange.reply(200, "text/plain; version=0.0.4; charset=utf-8", self.metrics.text())

    def _generate(self, exchange: Exchange, kind: type[Generation]) -> None:
        self.requests += 1
        if self._struck_by_fault():
            return
        request = openai_api.decode(kind, exchange.body)
        if request.model not in (None, self._options.model):
            raise ApiError(404, f"The model `{request.model}` does not exist.", param="model")
        prompt = request.prompt_of(self.model.profile.block_tokens)
        output_tokens, finish_reason = self._output(request, prompt.tokens)
        form = self._form(kind, finish_reason)
        sequence = self._runner.submit(
            prompt, output_tokens, lambda sequence: self._reader(exchange, request, form, sequence)
        )
        if sequence is None:
            self.metrics.rejected += 1
            raise ApiError(503, "The queue is full, try again later.", retry_after_s=_RETRY_AFTER_S)
        exchange.on_gone = lambda: self._runner.cancel(sequence)

    def _output(self, request: Generation, prompt_tokens: int) -> tuple[int, str]:
        """How many tokens to make, and why the answer ends there.

        As with a real model the request's limit is only a limit: the answer's own length is drawn, and
        `ignore_eos` is what makes the limit the length.
        """
        room = self.model.profile.max_model_tokens - prompt_tokens
        limit = request.output_limit
        if (limit or 1) > room:
            raise ApiError(
                400,
                f"This model's maximum context length is {room + prompt_tokens} tokens, but the prompt has "
                f"{prompt_tokens} and {limit or 1} more were asked for.",
                param="messages" if isinstance(request, ChatRequest) else "prompt",
            )
        if limit and request.ignore_eos:
            return limit, "length"
        length = max(self._draw_length(), request.min_tokens or 1)
        cap = limit or room
        return (cap, "length") if length >= cap else (length, "stop")

    def _draw_length(self) -> int:
        """A length with the profile's mean: a shifted gamma distribution of shape 2."""
        mean = self.model.profile.mean_output_tokens
        return 1 + round(self._rng.gammavariate(2.0, (mean - 1) / 2)) if mean > 1 else 1

    def _form(self, kind: type[Generation], finish_reason: str) -> Form:
        chat = kind is ChatRequest
        return Form(
            answer_id=f"{'chatcmpl' if chat else 'cmpl'}-{self._rng.getrandbits(96):024x}",
            created=int(time.time()),
            model=self._options.model,
            chat=chat,
            finish_reason=finish_reason,
            variant=self.requests,
        )

    def _reader(self, exchange: Exchange, request: Generation, form: Form, sequence: Sequence) -> Reader:
        if not request.stream:
            return WholeAnswer(exchange, form, sequence)
        interval = self._options.stream_interval
        return StreamedAnswer(exchange, form, sequence, interval=interval, include_usage=request.include_usage)

    # Faults

    def _struck_by_fault(self) -> bool:
        """Whether a fault takes this request; it is then dealt with, or never will be."""
        faults = self._faults
        if 0 < faults.crash_after < self.requests:
            self._crash()
            return True
        dice = self._rng.random()
        if dice < faults.error_rate:
            raise ApiError(500, "An injected fault.")
        return dice < faults.error_rate + faults.hang_rate

    def _crash(self) -> None:
        self.stop()
        if not self.crashed.done():
            self.crashed.set_result(None)

    def _change_faults(self, exchange: Exchange) -> None:
        try:
            changes = msgspec.json.decode(exchange.body, type=dict[str, Any])
            faults = msgspec.convert({**msgspec.structs.asdict(self._faults), **changes}, Faults)
        except msgspec.MsgspecError as error:
            raise ApiError(400, str(error)) from error
        self._set_faults(faults)
        if faults.down:
            self._cut_connections(spare=exchange)
        exchange.reply(200, _JSON, msgspec.json.encode(faults))

    def _set_faults(self, faults: Faults) -> None:
        self._faults = faults
        self.model.slowdown = faults.slowdown

    def _cut_connections(self, spare: Exchange | None = None) -> None:
        for connection in list(self._connections):
            if spare is None or not connection.serves(spare):
                connection.abort()
