"""A server's metrics by the names that vLLM has for them, so that dashboards and scalers made for vLLM work.

Nothing is recorded twice: series are made of our own at each scrape. docs/reference/metrics.md says which names are
left out. Source: vLLM 0.30, vllm/v1/metrics/loggers.py and perf.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

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
    """Return a histogram with only these buckets, and the last one."""
    kept = {*map(float, bounds), float("inf")}
    found = Metric(metric.name, metric.documentation, metric.type)
    found.samples = [
        sample for sample in metric.samples if not sample.name.endswith("_bucket") or float(sample.labels["le"]) in kept
    ]
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
