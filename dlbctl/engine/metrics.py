"""An engine's metrics under the names of vLLM or SGLang, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from dlbctl.engine.model import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from dlbctl.engine.lag import LoopLag
    from dlbctl.engine.model import EngineModel

Flavor = Literal["vllm", "sglang"]

_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)


class Histogram:
    """Counts durations, in seconds, between fixed bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric:
        """The histogram as Prometheus sees it: cumulative buckets."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self._sum_s)
        return family


class EngineMetrics:
    """What one engine counts beyond its model, and how all of it is shown."""

    def __init__(self, model: EngineModel, lag: LoopLag, *, served_model: str, flavor: Flavor) -> None:
        self.aborted = 0
        self.finished = 0
        self.rejected = 0
        self._model = model
        self._lag = lag
        self._labels = {"model_name": served_model}
        self._flavor = flavor
        self._ttft = Histogram()
        self._latency = Histogram()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_ended(self, sequence: Sequence) -> None:
        """A sequence finished or was cancelled."""
        if sequence.state is State.CANCELLED:
            self.aborted += 1
            return
        self.finished += 1
        self._ttft.observe(sequence.first_token_s - sequence.arrived_s)
        self._latency.observe(sequence.finished_s - sequence.arrived_s)

    def text(self) -> bytes:
        """The answer to /metrics."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing: prometheus_client would collect once for it."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, from the model's state at this moment."""
        yield from self._vllm() if self._flavor == "vllm" else self._sglang()
        yield self._gauge("dlb_engine_loop_lag_p99_seconds", "Event loop lag", self._lag.p99_s())
        yield self._counter("dlb_engine_rejected", "Requests refused by a full queue", self.rejected)

    def _vllm(self) -> Iterator[Metric]:
        model = self._model
        yield self._gauge("vllm:num_requests_running", "Requests in the batch", model.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue", model.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks leased", self._kv_usage())
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up", model.cache_queries_total)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found", model.cache_hits_total)
        yield from self._shared("vllm:")
        yield self._counter("vllm:request_success", "Requests finished", self.finished)
        yield self._ttft.family("vllm:time_to_first_token_seconds", "Time to first token", self._labels)
        yield self._latency.family("vllm:e2e_request_latency_seconds", "Request latency", self._labels)

    def _sglang(self) -> Iterator[Metric]:
        model = self._model
        tokens = model.profile.kv_blocks * model.profile.block_tokens
        yield self._gauge("sglang:num_running_reqs", "Requests in the batch", model.running)
        yield self._gauge("sglang:num_queue_reqs", "Requests in the queue", model.waiting)
        yield self._gauge("sglang:token_usage", "Share of KV blocks leased", self._kv_usage())
        yield self._gauge("sglang:num_used_tokens", "KV tokens leased", round(self._kv_usage() * tokens))
        yield self._gauge("sglang:max_total_num_tokens", "KV tokens there are", tokens)
        yield self._gauge("sglang:cache_hit_rate", "Share of prompt tokens found", self._hit_rate())
        yield self._counter("sglang:cached_tokens", "Prompt tokens found", model.cache_hits_total)
        yield from self._shared("sglang:")
        yield self._counter("sglang:num_requests", "Requests finished", self.finished)
        yield self._counter("sglang:num_aborted_requests", "Requests cancelled", self.aborted)
        yield self._ttft.family("sglang:time_to_first_token_seconds", "Time to first token", self._labels)
        yield self._latency.family("sglang:e2e_request_latency_seconds", "Request latency", self._labels)

    def _shared(self, prefix: str) -> Iterator[Metric]:
        model = self._model
        yield self._counter(f"{prefix}prompt_tokens", "Prompt tokens processed", model.prompt_tokens_total)
        yield self._counter(f"{prefix}generation_tokens", "Tokens generated", model.output_tokens_total)

    def _kv_usage(self) -> float:
        return self._model.pool.leased / self._model.pool.blocks

    def _hit_rate(self) -> float:
        return self._model.cache_hits_total / max(1, self._model.cache_queries_total)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
