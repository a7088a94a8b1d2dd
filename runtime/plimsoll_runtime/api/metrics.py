"""What Prometheus scrapes: times and counts of requests, and the engine's own counters as of its last step."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.api.record import RequestRecord
from plimsoll_runtime.api.room import Room
from plimsoll_runtime.api.state import Phase, ServerState
from plimsoll_runtime.engine.messages import EngineStats, TierStats
from plimsoll_runtime.engine.timeline import StepPhase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_COUNTS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)

ENGINE_PHASES = tuple(phase.name.lower() for phase in StepPhase if phase <= StepPhase.MESSAGE)
"""Those that an engine's process measures: what a server does with a step comes after them."""


class Metrics:
    """All series of one server, on a registry of their own; `model` is the first of its names."""

    def __init__(self, state: ServerState) -> None:
        self._model = state.names[0]
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "plimsoll_requests",
            "Requests answered, by status code (499: the client hung up).",
            ("model", "endpoint", "code"),
            registry=self.registry,
        )
        self._finished = Counter(
            "plimsoll_answers",
            "Answers finished, by reason.",
            ("model", "finish_reason"),
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "plimsoll_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            FIRST_TOKEN_SECONDS,
        )
        self._gap = self._histogram("plimsoll_inter_token_seconds", "Between two tokens of one answer.", TOKEN_SECONDS)
        self._duration = self._histogram(
            "plimsoll_request_seconds", "From a request's arrival to the end of its answer.", REQUEST_SECONDS
        )
        self._prompt = self._histogram("plimsoll_request_prompt_tokens", "Prompt tokens of a request.", TOKEN_COUNTS)
        self._completion = self._histogram(
            "plimsoll_request_completion_tokens", "Generated tokens of a request.", TOKEN_COUNTS
        )
        self._work = Counter(
            "plimsoll_answer_seconds",
            "Seconds of the server's work on answers: detokenise (stop strings too), send (waiting for readers too).",
            ("model", "phase"),
            registry=self.registry,
        )
        self.registry.register(_EngineCollector(state))

    def observe(self, record: RequestRecord, endpoint: str, code: int) -> None:
        """Count a request that has ended. `endpoint` is a route, never what a client sent."""
        self._requests.labels(self._model, endpoint, str(code)).inc()
        for reason in record.finish_reasons:
            self._finished.labels(self._model, reason).inc()
        self._work.labels(self._model, "detokenise").inc(record.text_seconds)
        self._work.labels(self._model, "send").inc(record.send_seconds)
        if record.first_token is None:
            return
        self._first_token.observe(record.first_token - record.started)
        for seconds, tokens in record.token_gaps:
            for _ in range(tokens):
                self._gap.observe(seconds / tokens)
        self._duration.observe(time.monotonic() - record.started)
        self._prompt.observe(record.prompt_tokens)
        self._completion.observe(record.completion_tokens)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, ("model",), buckets=buckets, registry=self.registry)
        return histogram.labels(self._model)


class _EngineCollector(Collector):
    """Reads the engine's counters at the time of the scrape."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """One family for each gauge and counter."""
        name = self._state.names[0]
        yield _gauge("plimsoll_ready", "1 while requests are taken.", name, self._state.phase is Phase.READY)
        yield _gauge("plimsoll_requests_in_flight", "HTTP requests being answered.", name, self._state.in_flight)
        if self._state.model is not None:
            yield from _room_metrics(name, self._state.model.room)
            yield from _engine_metrics(name, self._state.model.engine.stats)


def _room_metrics(name: str, room: Room) -> Iterator[Metric]:
    yield _gauge("plimsoll_answers_waiting", "Answers whose first token is still to come.", name, room.waiting)
    yield _gauge("plimsoll_waiting_tokens", "Prompt tokens of answers that wait so.", name, room.waiting_tokens)
    yield _counter("plimsoll_refused", "Requests refused because too many waited already.", name, room.refused)


def _engine_metrics(name: str, stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("plimsoll_sequences_running", "Sequences in the engine's batch.", name, stats.running)
    yield _gauge("plimsoll_sequences_waiting", "Sequences that wait for room.", name, stats.waiting)
    yield _gauge("plimsoll_kv_blocks", "Blocks of the KV cache.", name, stats.blocks_total)
    yield _gauge("plimsoll_kv_blocks_used", "Blocks held by running sequences.", name, stats.blocks_used)
    yield _gauge("plimsoll_kv_blocks_cached", "Free blocks that hold a reusable prefix.", name, stats.blocks_cached)
    usage = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    yield _gauge("plimsoll_kv_usage_ratio", "Share of the KV cache in use, from 0 to 1.", name, usage)
    for series, text, value in (
        ("plimsoll_engine_steps", "Steps of the engine.", stats.steps),
        (
            "plimsoll_prompt_tokens",
            "Prompt tokens computed, without those from the cache.",
            stats.prompt_tokens,
        ),
        ("plimsoll_generated_tokens", "Tokens generated.", stats.generated_tokens),
        ("plimsoll_prefix_query_tokens", "Prompt tokens looked up in the prefix cache.", stats.cache_query_tokens),
        ("plimsoll_prefix_hit_tokens", "Prompt tokens found in the prefix cache.", stats.cache_hit_tokens),
        ("plimsoll_preemptions", "Sequences put back for want of blocks, or for more urgent ones.", stats.preemptions),
        ("plimsoll_evictions", "Cached blocks given up for new ones.", stats.evictions),
        ("plimsoll_expired", "Requests whose deadline passed before their first token.", stats.expired),
        ("plimsoll_broken_off", "Sequences that could not go on, as their logits were not finite.", stats.broken_off),
        (
            "plimsoll_attention_fallbacks",
            "Attention backends that failed in service.",
            stats.attention_fallbacks,
        ),
    ):
        yield _counter(series, text, name, value)
    if stats.tiers is not None:
        yield from _tier_metrics(name, stats.tiers)
    phases = CounterMetricFamily(
        "plimsoll_step_seconds",
        "Seconds of the engine's steps by phase; divided by plimsoll_engine_steps_total, of a mean step.",
        labels=("model", "phase"),
    )
    for phase, seconds in zip(ENGINE_PHASES, stats.phase_seconds, strict=False):
        phases.add_metric((name, phase), seconds)
    yield phases


def _counter(series: str, text: str, model: str, value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(series, text, labels=("model",))
    family.add_metric((model,), float(value))
    return family


def _tier_metrics(name: str, tiers: TierStats) -> Iterator[Metric]:
    yield _gauge("plimsoll_tier_host_blocks", "Blocks of cached prefixes in host memory.", name, tiers.host_blocks)
    yield _gauge("plimsoll_tier_disk_blocks", "Blocks of cached prefixes on the disk.", name, tiers.disk_blocks)
    yield _gauge("plimsoll_tier_blocks_under_way", "Blocks being read or written.", name, tiers.under_way)
    for series, text, value in (
        ("plimsoll_tier_hit_tokens", "Tokens that came back from host memory or the disk.", tiers.hit_tokens),
        ("plimsoll_tier_spilled_blocks", "Blocks copied from the KV cache to host memory.", tiers.spilled),
        ("plimsoll_tier_dropped_blocks", "Blocks given up for want of room on the way there.", tiers.dropped),
        ("plimsoll_tier_loaded_blocks", "Blocks read from the disk.", tiers.loaded),
        ("plimsoll_tier_failed_blocks", "Blocks that the disk failed to write or read.", tiers.failed),
        ("plimsoll_tier_passed_blocks", "Blocks left on the disk as computing promised to be faster.", tiers.passed),
    ):
        yield _counter(series, text, name, value)


def _gauge(series: str, text: str, model: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(series, text, labels=("model",))
    family.add_metric((model,), float(value))
    return family
