"""Metrics of a server: histograms of requests, and engine counters that are read at each scrape."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.api.server.state import Phase, ServerState
from plimsoll_runtime.api.telemetry.attention_metrics import attention_metrics
from plimsoll_runtime.api.telemetry.engine_process import engine_processes
from plimsoll_runtime.api.telemetry.engine_stages import Stage, StageName, seconds_in, stages_of
from plimsoll_runtime.api.telemetry.gpu_metrics import GpuCollector
from plimsoll_runtime.api.telemetry.memory_metrics import BLOCKS, memory_metrics
from plimsoll_runtime.api.telemetry.metrics_key import LABELS
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.step_metrics import GRAPHS, PEAKS, step_metrics
from plimsoll_runtime.api.telemetry.vllm_names import OWN_NAMES, VLLM_NAMES, NamedRegistry, cache_config
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats, GroupStats
from plimsoll_runtime.engine.step_timing import StepPhase
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_telemetry.exposition import Exposition, exemplar_of, expose

ENGINE_PHASES = tuple(phase.name.lower() for phase in StepPhase if phase <= StepPhase.MESSAGE)
"""The phases that an engine's process measures; the server's own phases come after them."""

COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily
Exemplar = dict[str, str] | None
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


class EngineCollector(Collector):
    """Reads a server and the engines of its models at each scrape."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each gauge and counter, with a sample for each model."""
        state, key = self._state, self._state.key
        ready = {key: float(state.phase is Phase.READY and not state.recovering)}
        yield from _family(GAUGE, "plimsoll_ready", "1 while the server accepts requests.", ready)
        in_flight = {key: float(state.in_flight)}
        yield from _family(GAUGE, "plimsoll_requests_in_flight", "HTTP requests in flight.", in_flight)
        views = state.views()
        stats = {view.key: view.stats for view in views if view.stats is not None}
        engines = {view.key: view.served.engine for view in views if view.served is not None and view.key in stats}
        yield from families(ROOM, {view.key: view.room for view in views})
        yield from _model_metrics(stats)
        yield from _engine_metrics(key, {key: engine.info for key, engine in engines.items()}, stats)
        yield from engine_processes({key: engine.pid for key, engine in engines.items() if engine.pid is not None})


def _model_metrics(stats: Mapping[ModelName, EngineStats]) -> Iterator[Metric]:
    yield from families(STATS, stats)
    usage = {key: one.blocks_used / one.blocks_total if one.blocks_total else 0.0 for key, one in stats.items()}
    text = "Share of the KV cache in use, from 0 to 1."
    yield from _family(GAUGE, "plimsoll_kv_usage_ratio", text, usage)
    yield from families(TIERS, {key: one.tiers for key, one in stats.items() if one.tiers is not None})
    yield from families(SNAPSHOTS, {key: one.snapshots for key, one in stats.items() if one.snapshots is not None})
    yield from families(GRAPHS, {key: one.graphs for key, one in stats.items() if one.graphs is not None})
    yield from _group_metrics({key: one.group for key, one in stats.items() if one.group is not None})
    yield from _phases(stats)


def _engine_metrics(
    server: ModelName, infos: Mapping[ModelName, EngineInfo], stats: Mapping[ModelName, EngineStats]
) -> Iterator[Metric]:
    """Yield the metrics that need the description of an engine besides its counters."""
    stats = {key: stats[key] for key in infos}
    yield from step_metrics(infos, stats)
    yield from families(PEAKS, {key: info for key, info in infos.items() if info.peak_flops})
    yield from families(BLOCKS, infos)
    yield from attention_metrics(infos, stats)
    yield from memory_metrics(server, infos, stats)


def _uses_gpus(state: ServerState) -> bool:
    return any(view.served is not None and view.served.engine.info.device == "cuda" for view in state.views())


def _group_metrics(groups: Mapping[ModelName, GroupStats]) -> Iterator[Metric]:
    if not groups:
        return
    yield from families(GROUP, groups)
    lost = CounterMetricFamily(
        "plimsoll_group_generations_lost",
        "Generations of ranks that have ended, or could not be started again, by cause.",
        labels=(*LABELS, "cause"),
    )
    waited = CounterMetricFamily(
        "plimsoll_rank_wait_seconds",
        "Seconds in which a rank waited for others in sums over ranks; only with the group backend `local`.",
        labels=(*LABELS, "rank"),
    )
    for key, group in groups.items():
        for cause, count in group.lost.items():
            lost.add_metric((*key, cause), count)
        for rank, seconds in sorted(group.waited.items()):
            waited.add_metric((*key, str(rank)), seconds)
    yield lost
    yield waited


def families(series: Sequence[Series], sources: Mapping[ModelName, object]) -> Iterator[Metric]:
    """Yield one family for each series, with a sample for each source. Its key has the values of LABELS."""
    for kind, name, text, attribute in series:
        yield from _family(kind, name, text, {key: getattr(one, attribute) for key, one in sources.items()})


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, values: Mapping[ModelName, float]
) -> Iterator[Metric]:
    if not values:
        return
    family = kind(name, text, labels=LABELS)
    for key, value in values.items():
        family.add_metric(key, float(value))
    yield family


def _phases(stats: Mapping[ModelName, EngineStats]) -> Iterator[Metric]:
    if not stats:
        return
    phases = CounterMetricFamily(
        "plimsoll_step_seconds",
        "Seconds of the engine's steps by phase; divide by plimsoll_engine_steps_total for the mean of a step.",
        labels=(*LABELS, "phase"),
    )
    for key, one in stats.items():
        for phase, seconds in zip(ENGINE_PHASES, one.phase_seconds, strict=False):
            phases.add_metric((*key, phase), seconds)
    yield phases


WAIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
REQUEST_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
CHOICE_COUNTS = (1, 2, 4, 8, 16, 128)
TOKEN_COUNTS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)


class Metrics:
    """All series of one server, in a registry of their own. Requests that name no model have the server's own key."""

    def __init__(self, state: ServerState, names: Collection[str] = (OWN_NAMES,)) -> None:
        """`names`: whose names of metrics are shown, OWN_NAMES, VLLM_NAMES or both."""
        self._default = state.key
        self.registry = NamedRegistry(names, partial(served_name, state))
        self._requests = Counter(
            "plimsoll_requests",
            "Requests answered, by status code (499: the client hung up).",
            (*LABELS, "endpoint", "code"),
            registry=self.registry,
        )
        self._finished = Counter(
            "plimsoll_answers",
            "Choices finished, by reason.",
            (*LABELS, "finish_reason"),
            registry=self.registry,
        )
        self._first_token = self._histogram(
            "plimsoll_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            FIRST_TOKEN_SECONDS,
        )
        self._queue = self._histogram(
            "plimsoll_queue_seconds", "Seconds in the engine's waiting queue, before a choice ran first.", WAIT_SECONDS
        )
        self._prefill = self._histogram(
            "plimsoll_prefill_seconds", "Seconds from when a choice ran first to its first token.", FIRST_TOKEN_SECONDS
        )
        self._decode = self._histogram(
            "plimsoll_decode_seconds",
            "Seconds from the first to the last token of a choice, without the time in which it was preempted.",
            REQUEST_SECONDS,
        )
        self._gap = self._histogram(
            "plimsoll_inter_token_seconds", "Seconds between two tokens of one choice.", TOKEN_SECONDS
        )
        self._duration = self._histogram(
            "plimsoll_request_seconds", "Seconds from a request's arrival to the end of its response.", REQUEST_SECONDS
        )
        self._inference = self._histogram(
            "plimsoll_inference_seconds", "Seconds from when a choice ran first to its last token.", REQUEST_SECONDS
        )
        self._mean_gap = self._histogram(
            "plimsoll_mean_token_seconds",
            "Mean of the seconds between two tokens of a choice; one value for each choice with two tokens or more.",
            TOKEN_SECONDS,
        )
        self._choices = self._histogram("plimsoll_request_choices", "Choices that a request asks for.", CHOICE_COUNTS)
        self._most_tokens = self._histogram(
            "plimsoll_request_max_tokens", "Most tokens of a choice that a request allows, if it says so.", TOKEN_COUNTS
        )
        self._prompt = self._histogram("plimsoll_request_prompt_tokens", "Prompt tokens of a request.", TOKEN_COUNTS)
        self._completion = self._histogram(
            "plimsoll_request_completion_tokens", "Generated tokens of a request.", TOKEN_COUNTS
        )
        self._work = Counter(
            "plimsoll_answer_seconds",
            "Seconds of the server's work on outputs: detokenise (with stop strings), send (with waiting for readers).",
            (*LABELS, "phase"),
            registry=self.registry,
        )
        self._last = Gauge(
            "plimsoll_last_request_timestamp_seconds",
            "When the last request for a model ended, in seconds since the epoch; no sample before the first.",
            LABELS,
            registry=self.registry,
        )
        if state.names:
            for histogram in (
                *(self._first_token, self._gap, self._duration, self._prompt, self._completion),
                *(self._queue, self._prefill, self._decode, self._inference, self._mean_gap),
                *(self._choices, self._most_tokens),
            ):
                histogram.labels(*self._default)
        self.registry.register(EngineCollector(state))
        if VLLM_NAMES in names:
            self.registry.register(CacheConfigCollector(state))
        self.registry.register(GpuCollector(lambda: _uses_gpus(state)))

    def observe(self, record: RequestRecord, endpoint: str, code: int) -> None:
        """Count a request that has ended. `endpoint` is a route, never text of the client."""
        key = record.key or self._default
        self._requests.labels(*key, endpoint, str(code)).inc()
        if record.key is not None:
            self._last.labels(*key).set_to_current_time()
        exemplar = exemplar_of(record.span)
        for marks in record.marks.values():
            self._observe_stages(key, stages_of(marks), exemplar)
        for reason in record.finish_reasons:
            self._finished.labels(*key, reason).inc()
        self._work.labels(*key, "detokenise").inc(record.text_seconds)
        self._work.labels(*key, "send").inc(record.send_seconds)
        if record.first_token is None:
            return
        self._first_token.labels(*key).observe(record.first_token - record.started, exemplar)
        self._observe_gaps(key, record.token_gaps, exemplar)
        self._duration.labels(*key).observe(time.monotonic() - record.started, exemplar)
        self._prompt.labels(*key).observe(record.prompt_tokens)
        self._completion.labels(*key).observe(record.completion_tokens)
        if record.choices:
            self._choices.labels(*key).observe(record.choices)
        if record.max_tokens is not None:
            self._most_tokens.labels(*key).observe(record.max_tokens)
        for mean in record.mean_gaps():
            self._mean_gap.labels(*key).observe(mean, exemplar)

    def _observe_gaps(self, key: ModelName, gaps: Sequence[tuple[float, int]], exemplar: Exemplar) -> None:
        """Count the time between tokens. Only the longest gap has the exemplar: making one costs more than counting."""
        histogram = self._gap.labels(*key)
        each = [seconds / tokens for seconds, tokens in gaps for _ in range(tokens)]
        longest = each.index(max(each)) if exemplar and each else -1
        for number, gap in enumerate(each):
            histogram.observe(gap, exemplar if number == longest else None)

    def _observe_stages(self, key: ModelName, stages: Sequence[Stage], exemplar: Exemplar) -> None:
        for histogram, names in (
            (self._queue, (StageName.QUEUE,)),
            (self._prefill, (StageName.PREFILL,)),
            (self._decode, (StageName.DECODE,)),
            (self._inference, (StageName.PREFILL, StageName.DECODE, StageName.PREEMPTED)),
        ):
            if (seconds := seconds_in(stages, *names)) is not None:
                histogram.labels(*key).observe(seconds, exemplar)

    def render(self, accept: str = "") -> Exposition:
        """Return the response to a scrape with this header Accept."""
        return expose(self.registry, accept)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        buckets = tuple(self.registry.buckets(name, buckets))
        return Histogram(name, text, LABELS, buckets=buckets, registry=self.registry)


def served_name(state: ServerState, labels: Mapping[str, str]) -> str:
    """Return the first served name of the model that has these labels; the name of its ModelDeployment if it is not
    known.
    """
    key = labels["namespace"], labels["model"]
    found = next((view.names[0] for view in state.views() if (*view.key,) == key), None)
    return found or (state.names[0] if state.names and key == (*state.key,) else labels["model"])


class CacheConfigCollector(Collector):
    """Tells the configuration of each engine's KV cache by vLLM's name."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield one metric, once there are models."""
        views = self._state.views()
        yield cache_config([(view.names[0], view.served.engine.info) for view in views if view.served is not None])
