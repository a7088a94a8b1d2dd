"""Metrics of a server: histograms of requests, and engine counters that are read at each scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.api.model_directory import ModelView
from plimsoll_runtime.api.server.state import Phase, ServerState
from plimsoll_runtime.api.telemetry.engine_stages import Stage, StageName, seconds_in, stages_of
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.protocol.messages import EngineStats, GroupStats
from plimsoll_runtime.engine.step_timing import StepPhase

ENGINE_PHASES = tuple(phase.name.lower() for phase in StepPhase if phase <= StepPhase.MESSAGE)
"""The phases that an engine's process measures; the server's own phases come after them."""

COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily
Series = tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str]
"""Type, name, help text, and the attribute that has the value."""

ROOM: tuple[Series, ...] = (
    (GAUGE, "plimsoll_answers_waiting", "Choices that wait for their first token.", "waiting"),
    (GAUGE, "plimsoll_waiting_tokens", "Prompt tokens of choices that wait for their first token.", "waiting_tokens"),
    (COUNTER, "plimsoll_refused", "Requests refused because the queue limit was reached.", "refused"),
)
STATS: tuple[Series, ...] = (
    (GAUGE, "plimsoll_sequences_running", "Sequences in the engine's batch.", "running"),
    (GAUGE, "plimsoll_sequences_waiting", "Sequences that wait for a slot and KV blocks.", "waiting"),
    (GAUGE, "plimsoll_kv_blocks", "Blocks of the KV cache.", "blocks_total"),
    (GAUGE, "plimsoll_kv_blocks_used", "Blocks held by running sequences.", "blocks_used"),
    (GAUGE, "plimsoll_kv_blocks_cached", "Free blocks that hold a reusable prefix.", "blocks_cached"),
    (COUNTER, "plimsoll_engine_steps", "Steps of the engine.", "steps"),
    (COUNTER, "plimsoll_prompt_tokens", "Prompt tokens computed, without those from the cache.", "prompt_tokens"),
    (COUNTER, "plimsoll_generated_tokens", "Tokens generated.", "generated_tokens"),
    (COUNTER, "plimsoll_forced_tokens", "Generated tokens that a grammar forced, without sampling.", "forced_tokens"),
    (COUNTER, "plimsoll_prefix_query_tokens", "Prompt tokens looked up in the prefix cache.", "cache_query_tokens"),
    (COUNTER, "plimsoll_prefix_hit_tokens", "Prompt tokens found in the prefix cache.", "cache_hit_tokens"),
    (COUNTER, "plimsoll_preemptions", "Sequences preempted for lack of blocks or for more urgent ones.", "preemptions"),
    (COUNTER, "plimsoll_evictions", "Cached blocks evicted for new ones.", "evictions"),
    (COUNTER, "plimsoll_expired", "Requests whose deadline passed before their first token.", "expired"),
    (
        COUNTER,
        "plimsoll_broken_off",
        "Running sequences ended by an error, such as logits that are not finite or too little device memory.",
        "broken_off",
    ),
    (COUNTER, "plimsoll_attention_fallbacks", "Attention backends that failed in service.", "attention_fallbacks"),
    (COUNTER, "plimsoll_kernels_compiled", "Kernels compiled in service, not at the warm-up.", "kernels_compiled"),
)
TIERS: tuple[Series, ...] = (
    (GAUGE, "plimsoll_tier_host_blocks", "Blocks of cached prefixes in host memory.", "host_blocks"),
    (GAUGE, "plimsoll_tier_disk_blocks", "Blocks of cached prefixes on disk.", "disk_blocks"),
    (GAUGE, "plimsoll_tier_blocks_under_way", "Blocks being read or written.", "under_way"),
    (COUNTER, "plimsoll_tier_hit_tokens", "Tokens restored from host memory or disk.", "hit_tokens"),
    (COUNTER, "plimsoll_tier_spilled_blocks", "Blocks copied from the KV cache to host memory.", "spilled"),
    (COUNTER, "plimsoll_tier_dropped_blocks", "Blocks dropped on the way to host memory for lack of space.", "dropped"),
    (COUNTER, "plimsoll_tier_loaded_blocks", "Blocks read from disk.", "loaded"),
    (COUNTER, "plimsoll_tier_failed_blocks", "Blocks whose write to disk or read failed.", "failed"),
    (
        COUNTER,
        "plimsoll_tier_passed_blocks",
        "Blocks on disk that were computed again because that was expected to be faster than reading them.",
        "passed",
    ),
)
SNAPSHOTS: tuple[Series, ...] = (
    (GAUGE, "plimsoll_state_snapshots", "Capacity for snapshots of recurrent states.", "rows"),
    (GAUGE, "plimsoll_state_snapshots_kept", "Snapshots that a request can resume from.", "kept"),
    (COUNTER, "plimsoll_state_snapshots_taken", "Snapshots taken.", "taken"),
    (COUNTER, "plimsoll_state_snapshots_resumed", "Sequences resumed from a snapshot.", "resumed"),
)
GROUP: tuple[Series, ...] = (
    (
        GAUGE,
        "plimsoll_group_generation",
        "Number of the generation of ranks; it only grows.",
        "generation",
    ),
    (
        COUNTER,
        "plimsoll_group_refused_connections",
        "Connections to the leader of a parallel group closed because they did not prove to be members.",
        "refused_connections",
    ),
)


def whole_server(state: ServerState) -> str:
    """Return the label `model` of series about the whole server: the first name of its only model; empty if it has
    several models."""
    return state.names[0] if state.names else ""


class EngineCollector(Collector):
    """Reads a server and the engines of its models at each scrape."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each gauge and counter, with a sample for each model."""
        state = self._state
        name = whole_server(state)
        ready = {name: float(state.phase is Phase.READY and not state.recovering)}
        yield from _family(GAUGE, "plimsoll_ready", "1 while the server accepts requests.", ready)
        in_flight = {name: float(state.in_flight)}
        yield from _family(GAUGE, "plimsoll_requests_in_flight", "HTTP requests in flight.", in_flight)
        yield from _model_metrics(state.models.views() if state.models is not None else ())


def _model_metrics(views: Sequence[ModelView]) -> Iterator[Metric]:
    stats = {view.names[0]: view.stats for view in views if view.stats is not None}
    yield from families(ROOM, {view.names[0]: view.room for view in views})
    yield from families(STATS, stats)
    usage = {name: one.blocks_used / one.blocks_total if one.blocks_total else 0.0 for name, one in stats.items()}
    text = "Share of the KV cache in use, from 0 to 1."
    yield from _family(GAUGE, "plimsoll_kv_usage_ratio", text, usage)
    yield from families(TIERS, {name: one.tiers for name, one in stats.items() if one.tiers is not None})
    yield from families(SNAPSHOTS, {name: one.snapshots for name, one in stats.items() if one.snapshots is not None})
    yield from _group_metrics({name: one.group for name, one in stats.items() if one.group is not None})
    yield from _phases(stats)


def _group_metrics(groups: Mapping[str, GroupStats]) -> Iterator[Metric]:
    if not groups:
        return
    yield from families(GROUP, groups)
    lost = CounterMetricFamily(
        "plimsoll_group_generations_lost",
        "Generations of ranks that have ended, or could not be started again, by cause.",
        labels=("model", "cause"),
    )
    waited = CounterMetricFamily(
        "plimsoll_rank_wait_seconds",
        "Seconds in which a rank waited for others in sums over ranks; only with the group backend `local`.",
        labels=("model", "rank"),
    )
    for model, group in groups.items():
        for cause, count in group.lost.items():
            lost.add_metric((model, cause), count)
        for rank, seconds in sorted(group.waited.items()):
            waited.add_metric((model, str(rank)), seconds)
    yield lost
    yield waited


def families(series: Sequence[Series], sources: Mapping[str, object]) -> Iterator[Metric]:
    """Yield one family for each series, with a sample for each source by its label `model`."""
    for kind, name, text, attribute in series:
        yield from _family(kind, name, text, {model: getattr(one, attribute) for model, one in sources.items()})


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, values: Mapping[str, float]
) -> Iterator[Metric]:
    if not values:
        return
    family = kind(name, text, labels=("model",))
    for model, value in values.items():
        family.add_metric((model,), float(value))
    yield family


def _phases(stats: Mapping[str, EngineStats]) -> Iterator[Metric]:
    if not stats:
        return
    phases = CounterMetricFamily(
        "plimsoll_step_seconds",
        "Seconds of the engine's steps by phase; divide by plimsoll_engine_steps_total for the mean of a step.",
        labels=("model", "phase"),
    )
    for model, one in stats.items():
        for phase, seconds in zip(ENGINE_PHASES, one.phase_seconds, strict=False):
            phases.add_metric((model, phase), seconds)
    yield phases


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WAIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKEN_COUNTS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)


class Metrics:
    """All series of one server, in a registry of their own. The label `model` is a model's first name."""

    def __init__(self, state: ServerState) -> None:
        self._default = whole_server(state)
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "plimsoll_requests",
            "Requests answered, by status code (499: the client hung up).",
            ("model", "endpoint", "code"),
            registry=self.registry,
        )
        self._finished = Counter(
            "plimsoll_answers",
            "Choices finished, by reason.",
            ("model", "finish_reason"),
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "plimsoll_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            FIRST_TOKEN_SECONDS,
        )
        self._queue = self._histogram(
            "plimsoll_queue_seconds", "In the engine's waiting queue, before a choice ran first.", WAIT_SECONDS
        )
        self._prefill = self._histogram(
            "plimsoll_prefill_seconds", "From when a choice ran first to its first token.", FIRST_TOKEN_SECONDS
        )
        self._decode = self._histogram(
            "plimsoll_decode_seconds",
            "From the first to the last token of a choice, without the time in which it was preempted.",
            REQUEST_SECONDS,
        )
        self._gap = self._histogram("plimsoll_inter_token_seconds", "Between two tokens of one choice.", TOKEN_SECONDS)
        self._duration = self._histogram(
            "plimsoll_request_seconds", "From a request's arrival to the end of its response.", REQUEST_SECONDS
        )
        self._prompt = self._histogram("plimsoll_request_prompt_tokens", "Prompt tokens of a request.", TOKEN_COUNTS)
        self._completion = self._histogram(
            "plimsoll_request_completion_tokens", "Generated tokens of a request.", TOKEN_COUNTS
        )
        self._work = Counter(
            "plimsoll_answer_seconds",
            "Seconds of the server's work on outputs: detokenise (with stop strings), send (with waiting for readers).",
            ("model", "phase"),
            registry=self.registry,
        )
        self._last = Gauge(
            "plimsoll_last_request_timestamp_seconds",
            "When the last request for a model ended, in seconds since the epoch; no sample before the first.",
            ("model",),
            registry=self.registry,
        )
        if self._default:
            for histogram in (
                *(self._first_token, self._gap, self._duration, self._prompt, self._completion),
                *(self._queue, self._prefill, self._decode),
            ):
                histogram.labels(self._default)
        self.registry.register(EngineCollector(state))

    def observe(self, record: RequestRecord, endpoint: str, code: int) -> None:
        """Count a request that has ended. `endpoint` is a route, never text of the client."""
        model = record.model or self._default
        self._requests.labels(model, endpoint, str(code)).inc()
        if record.model:
            self._last.labels(record.model).set_to_current_time()
        for marks in record.marks.values():
            self._observe_stages(model, stages_of(marks))
        for reason in record.finish_reasons:
            self._finished.labels(model, reason).inc()
        self._work.labels(model, "detokenise").inc(record.text_seconds)
        self._work.labels(model, "send").inc(record.send_seconds)
        if record.first_token is None:
            return
        self._first_token.labels(model).observe(record.first_token - record.started)
        gap = self._gap.labels(model)
        for seconds, tokens in record.token_gaps:
            for _ in range(tokens):
                gap.observe(seconds / tokens)
        self._duration.labels(model).observe(time.monotonic() - record.started)
        self._prompt.labels(model).observe(record.prompt_tokens)
        self._completion.labels(model).observe(record.completion_tokens)

    def _observe_stages(self, model: str, stages: Sequence[Stage]) -> None:
        for histogram, name in (
            (self._queue, StageName.QUEUE),
            (self._prefill, StageName.PREFILL),
            (self._decode, StageName.DECODE),
        ):
            if (seconds := seconds_in(stages, name)) is not None:
                histogram.labels(model).observe(seconds)

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ("model",), buckets=buckets, registry=self.registry)
