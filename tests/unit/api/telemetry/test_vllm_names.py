"""vLLM's names are views: each equals what a metric of that name would have recorded itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric

from plimsoll_runtime.api.server.config import FrontConfig
from plimsoll_runtime.api.server.state import ServerState
from plimsoll_runtime.api.telemetry.metrics import FIRST_TOKEN_SECONDS, Metrics
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.api.telemetry.vllm_names import SERIES, bounds_of, narrowed, vllm_metrics
from plimsoll_runtime.engine.protocol.messages import Mark, MarkKind
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.utils.option import fields_of

LABELS = ("namespace", "model")
OWN = (0.05, 0.25, 1, 7)
HISTOGRAMS = [series for series in SERIES if series.buckets]


def samples_of(metric: Metric) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in metric.samples}


def by_name(registry: CollectorRegistry) -> dict[str, Metric]:
    return {
        metric.name: metric for metric in vllm_metrics(registry.collect(), lambda labels: f"served-{labels['model']}")
    }


@given(values=st.lists(st.floats(0, 1e4) | st.sampled_from([0.05, 0.25, 0.3, 1.0, 20.0, 2560.0]), max_size=40))
def test_histograms_equal_those_recorded_in_the_buckets_of_each(values: list[float]) -> None:
    for series in HISTOGRAMS:
        registry, reference = CollectorRegistry(), CollectorRegistry()
        recorded = Histogram(series.ours, "x", LABELS, buckets=bounds_of(series.ours, OWN), registry=registry)
        own = Histogram(series.ours, "x", LABELS, buckets=OWN, registry=reference)
        theirs = Histogram(series.theirs, "x", ("model_name", "engine"), buckets=series.buckets, registry=reference)
        for value in values:
            recorded.labels("team", "m").observe(value)
            own.labels("team", "m").observe(value)
            theirs.labels("served-m", "0").observe(value)
        wanted = {metric.name: drop_created(samples_of(metric)) for metric in reference.collect()}
        (found,) = registry.collect()
        assert drop_created(samples_of(narrowed(found, OWN))) == wanted[series.ours]
        assert drop_created(samples_of(by_name(registry)[series.theirs])) == wanted[series.theirs]


def drop_created(samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[object, float]:
    return {key: value for key, value in samples.items() if not key[0].endswith("_created")}


def test_counters_and_gauges_of_several_models() -> None:
    registry = CollectorRegistry()
    running = Gauge("plimsoll_sequences_running", "x", LABELS, registry=registry)
    answers = Counter("plimsoll_answers", "x", (*LABELS, "finish_reason"), registry=registry)
    running.labels("team", "a").set(3)
    running.labels("team", "b").set(5)
    for reason, count in (("stop", 4), ("disconnect", 2), ("deadline", 1)):
        answers.labels("team", "a", reason).inc(count)
    found = by_name(registry)
    assert samples_of(found["vllm:num_requests_running"]) == {
        ("vllm:num_requests_running", (("engine", "0"), ("model_name", "served-a"))): 3,
        ("vllm:num_requests_running", (("engine", "0"), ("model_name", "served-b"))): 5,
    }
    totals = {
        dict(labels)["finished_reason"]: value
        for (name, labels), value in samples_of(found["vllm:request_success"]).items()
        if name == "vllm:request_success_total"
    }
    assert totals == {"stop": 4, "abort": 3}


def test_work_of_several_kinds_is_added_up() -> None:
    registry = CollectorRegistry()
    flops = Counter("plimsoll_step_flops", "x", (*LABELS, "kind"), registry=registry)
    flops.labels("team", "a", "head").inc(1e9)
    flops.labels("team", "a", "attention").inc(2e9)
    (metric,) = by_name(registry).values()
    labels = (("engine", "0"), ("model_name", "served-a"))
    assert samples_of(metric)[("vllm:estimated_flops_per_gpu_total", labels)] == 3e9


def test_a_metric_that_vllm_has_no_name_for_is_left_out() -> None:
    registry = CollectorRegistry()
    Gauge("plimsoll_ready", "x", LABELS, registry=registry).labels("team", "a").set(1)
    assert by_name(registry) == {}


@pytest.mark.parametrize("names", [("plimsoll",), ("vllm",), ("plimsoll", "vllm")])
def test_a_server_shows_the_names_that_are_wanted(names: tuple[str, ...]) -> None:
    record = RequestRecord("r", key=ModelName("team", "m"), choices=2, max_tokens=9)
    record.first_token, record.prompt_tokens = record.started + 0.03, 5
    record.saw(0, 1, 10.0)
    record.saw(0, 2, 10.5)
    record.marked(0, [Mark(kind, at) for kind, at in ((MarkKind.QUEUED, 0), (MarkKind.SCHEDULED, 10**9))])
    state = ServerState(("served",), deployment=ModelName("team", "m"))
    metrics = Metrics(state, names)
    metrics.observe(record, "/v1/completions", 200)
    body = metrics.render().body.decode()
    assert ("plimsoll_queue_seconds" in body) is ("plimsoll" in names)
    assert ("vllm:request_queue_time_seconds" in body) is ("vllm" in names)
    if "vllm" in names:
        labels = 'engine="0",model_name="served"'
        lines = {line for line in body.splitlines() if not line.startswith("#")}
        assert f"vllm:request_queue_time_seconds_sum{{{labels}}} 1.0" in lines
        assert f"vllm:request_params_n_sum{{{labels}}} 2.0" in lines
        assert f"vllm:request_params_max_tokens_sum{{{labels}}} 9.0" in lines
        assert f"vllm:request_time_per_output_token_seconds_sum{{{labels}}} 0.25" in lines
        assert f"vllm:request_prompt_tokens_sum{{{labels}}} 5.0" in lines
    own = re.findall(r'plimsoll_time_to_first_token_seconds_bucket\{le="([^"]+)"', body)
    assert own == ([f"{bound:g}" if bound < 1 else f"{float(bound)}" for bound in FIRST_TOKEN_SECONDS] + ["+Inf"]) * (
        "plimsoll" in names
    )


def test_an_exemplar_moves_to_the_next_bucket_that_is_shown() -> None:
    registry = CollectorRegistry()
    recorded = Histogram("x_seconds", "x", buckets=(1, 2, 3), registry=registry)
    recorded.observe(0.5, {"trace_id": "a"})
    (metric,) = registry.collect()
    assert [sample.exemplar and sample.exemplar.labels for sample in narrowed(metric, [2]).samples[:2]] == [
        {"trace_id": "a"},
        None,
    ]


def test_a_variable_names_both_kinds_or_is_refused() -> None:
    option = fields_of(FrontConfig)["metrics_names"]
    assert option.read_variable("plimsoll,vllm") == "plimsoll,vllm"
    with pytest.raises(UsageError, match="PLIMSOLL_METRICS_NAMES must be one of plimsoll, vllm, plimsoll,vllm, not x"):
        option.read_variable("x")
