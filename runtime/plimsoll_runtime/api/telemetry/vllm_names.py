"""A server's metrics by the names that vLLM has for them, so that dashboards and scalers made for vLLM work.

Nothing is recorded twice: series are made of our own at each scrape. docs/reference/metrics.md says which names are
left out. Source: vLLM 0.30, vllm/v1/metrics/loggers.py and perf.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from plimsoll_runtime.engine.protocol.messages import EngineInfo

ENGINE = "0"
"""vLLM numbers the engines of a server; ours has one for each model."""

LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TOKEN = (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),)
STEP = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
TOKENS = tuple(float(mantissa * 10**power) for power in range(6) for mantissa in (1, 2, 5))


OWN_NAMES, VLLM_NAMES = "plimsoll", "vllm"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric of vLLM's and ours that has its values. `buckets`: upper bounds of a histogram. `label`: the names of a
    label that both have, ours first; `values`: how its values are called, those that are missing stay.
    """

    theirs: str
    ours: str
    buckets: Sequence[float] = ()
    label: tuple[str, str] | None = None
    values: Mapping[str, str] | None = None


REASONS = {"disconnect": "abort", "deadline": "abort", "unavailable": "error"}
SERIES = (
    Series("vllm:num_requests_running", "plimsoll_sequences_running"),
    Series("vllm:num_requests_waiting", "plimsoll_sequences_waiting"),
    Series("vllm:kv_cache_usage_perc", "plimsoll_kv_usage_ratio"),
    Series("vllm:prefix_cache_queries", "plimsoll_prefix_query_tokens"),
    Series("vllm:prefix_cache_hits", "plimsoll_prefix_hit_tokens"),
    Series("vllm:num_preemptions", "plimsoll_preemptions"),
    # vLLM counts the prompt's tokens whether they are cached or not.
    Series("vllm:prompt_tokens", "plimsoll_prefix_query_tokens"),
    Series("vllm:generation_tokens", "plimsoll_generated_tokens"),
    Series("vllm:request_success", "plimsoll_answers", label=("finish_reason", "finished_reason"), values=REASONS),
    Series("vllm:iteration_tokens_total", "plimsoll_step_tokens", STEP),
    Series("vllm:time_to_first_token_seconds", "plimsoll_time_to_first_token_seconds", FIRST_TOKEN),
    Series("vllm:inter_token_latency_seconds", "plimsoll_inter_token_seconds", TOKEN),
    Series("vllm:request_time_per_output_token_seconds", "plimsoll_mean_token_seconds", TOKEN),
    Series("vllm:e2e_request_latency_seconds", "plimsoll_request_seconds", LATENCY),
    Series("vllm:request_queue_time_seconds", "plimsoll_queue_seconds", LATENCY),
    Series("vllm:request_inference_time_seconds", "plimsoll_inference_seconds", LATENCY),
    Series("vllm:request_prefill_time_seconds", "plimsoll_prefill_seconds", LATENCY),
    Series("vllm:request_decode_time_seconds", "plimsoll_decode_seconds", LATENCY),
    Series("vllm:request_prompt_tokens", "plimsoll_request_prompt_tokens", TOKENS),
    Series("vllm:request_generation_tokens", "plimsoll_request_completion_tokens", TOKENS),
    Series("vllm:request_params_n", "plimsoll_request_choices", CHOICES),
    Series("vllm:request_params_max_tokens", "plimsoll_request_max_tokens", TOKENS),
    Series("vllm:estimated_flops_per_gpu", "plimsoll_step_flops"),
)
THEIRS: Mapping[str, Sequence[Series]] = {
    ours: tuple(series for series in SERIES if series.ours == ours) for ours in {series.ours for series in SERIES}
}


def bounds_of(ours: str, own: Iterable[float]) -> tuple[float, ...]:
    """Return the buckets in which a histogram must be recorded to be shown with its `own` ones and with vLLM's."""
    theirs = {bound for series in THEIRS.get(ours, ()) for bound in series.buckets}
    return tuple(sorted({*map(float, own), *theirs}))


def narrowed(metric: Metric, bounds: Iterable[float]) -> Metric:
    """Return a histogram with only these buckets, and the last one. An exemplar moves to the bucket that now has it."""
    kept = {*map(float, bounds), float("inf")}
    found = Metric(metric.name, metric.documentation, metric.type)
    exemplar = None
    for sample in metric.samples:
        if not sample.name.endswith("_bucket"):
            found.samples.append(sample)
            continue
        exemplar = sample.exemplar or exemplar
        if float(sample.labels["le"]) in kept:
            found.samples.append(sample._replace(exemplar=exemplar))
            exemplar = None
    return found


def vllm_metrics(metrics: Iterable[Metric], served_name: Callable[[Mapping[str, str]], str]) -> Iterator[Metric]:
    """Yield vLLM's metrics, made of ours. `served_name` returns a model's name from the labels of one of its samples.

    Series of several processes of a model (ranks, or kinds of work) are added up.
    """
    for metric in metrics:
        for series in THEIRS.get(metric.name, ()):
            yield _renamed(metric, series, served_name)


def _renamed(metric: Metric, series: Series, served_name: Callable[[Mapping[str, str]], str]) -> Metric:
    shown = narrowed(metric, series.buckets) if metric.type == "histogram" else metric
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in shown.samples:
        name = series.theirs + sample.name.removeprefix(metric.name)
        key = name, tuple(_labels(series, sample, served_name(sample.labels)).items())
        sums[key] = sums.get(key, 0.0) + sample.value
    found = Metric(series.theirs, metric.documentation, metric.type)
    found.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
    return found


def _labels(series: Series, sample: Sample, model_name: str) -> dict[str, str]:
    labels = {"model_name": model_name, "engine": ENGINE}
    if series.label is not None:
        ours, theirs = series.label
        value = sample.labels[ours]
        labels[theirs] = (series.values or {}).get(value, value)
    if "le" in sample.labels:
        labels["le"] = sample.labels["le"]
    return labels


class NamedRegistry(CollectorRegistry):
    """A registry whose metrics are shown by their own names, by vLLM's, or by both. Histograms are recorded once, in
    the buckets of both.
    """

    def __init__(self, names: Collection[str], served_name: Callable[[Mapping[str, str]], str]) -> None:
        """`names`: OWN_NAMES, VLLM_NAMES or both. `served_name`: as for `vllm_metrics`."""
        super().__init__()
        self._names = frozenset(names)
        self._served_name = served_name
        self._own_buckets: dict[str, Sequence[float]] = {}

    def buckets(self, name: str, own: Sequence[float]) -> Sequence[float]:
        """Return the buckets in which the histogram `name` is to be recorded, which shows its `own` ones."""
        if VLLM_NAMES not in self._names:
            return own
        self._own_buckets[name] = own
        return bounds_of(name, own)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics by the names that are wanted."""
        found: dict[tuple[str, str], str] = {}

        def served_name(labels: Mapping[str, str]) -> str:
            key = labels["namespace"], labels["model"]
            if key not in found:
                found[key] = self._served_name(labels)
            return found[key]

        for metric in super().collect():
            if metric.name.startswith("vllm:"):
                yield metric
                continue
            if OWN_NAMES in self._names:
                own = self._own_buckets.get(metric.name)
                yield metric if own is None else narrowed(metric, own)
            if VLLM_NAMES in self._names:
                yield from vllm_metrics([metric], served_name)


def cache_config(blocks: Iterable[tuple[str, EngineInfo]]) -> Metric:
    """Return vLLM's information about the KV cache, of the engine of each served name. Of its labels only those that
    ours has too; a size in bytes is as text, like all labels.
    """
    labels = ("model_name", "engine", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching")
    found = GaugeMetricFamily("vllm:cache_config_info", "1; the labels have the configuration.", labels=labels)
    for name, info in blocks:
        caching = not info.recurrent or info.snapshots > 0
        found.add_metric((name, ENGINE, str(info.block_size), str(info.num_blocks), info.dtype, str(caching)), 1)
    return found
