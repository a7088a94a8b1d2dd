"""Metrics of an engine's steps: their sizes, their work next to the device's peaks, and CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from plimsoll_runtime.api.telemetry.labelled import Buckets, bucketed, labelled
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats
from plimsoll_runtime.engine.work.counter import SEQUENCE_BOUNDS, TOKEN_BOUNDS
from plimsoll_runtime.engine.work.model import PLAIN
from plimsoll_runtime.residency.spec import ModelName

COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily

PEAKS = (
    (
        GAUGE,
        "plimsoll_device_peak_flops_per_second",
        "Peak rate of a matrix product, in floating point operations per second, measured on all ranks together.",
        "peak_flops",
    ),
    (
        GAUGE,
        "plimsoll_device_peak_bytes_per_second",
        "Peak rate of reading memory, in bytes per second, measured on all ranks together.",
        "peak_bytes",
    ),
)
"""Of an engine's description, if its peaks are known."""
GRAPHS = (
    (COUNTER, "plimsoll_graph_replays", "Forward passes that were replayed as CUDA graphs.", "replayed"),
    (COUNTER, "plimsoll_graph_misses", "Forward passes without a captured CUDA graph.", "launched"),
    (COUNTER, "plimsoll_padding_tokens", "Tokens of padding in replayed CUDA graphs.", "padding"),
)
"""Of `EngineStats.graphs`."""


def step_metrics(infos: Mapping[ModelName, EngineInfo], stats: Mapping[ModelName, EngineStats]) -> Iterator[Metric]:
    """Yield sizes and work of the steps of each engine. Its work is that of all ranks of a group."""
    counted = {model: one for model, one in stats.items() if one.amounts}
    yield from bucketed(
        "plimsoll_step_tokens",
        "Tokens computed in a step.",
        TOKEN_BOUNDS,
        {model: Buckets(one.step_tokens, one.amounts[PLAIN.index("tokens")]) for model, one in counted.items()},
    )
    yield from bucketed(
        "plimsoll_step_sequences",
        "Sequences in a step.",
        SEQUENCE_BOUNDS,
        {model: Buckets(one.step_sequences, one.amounts[PLAIN.index("sequences")]) for model, one in counted.items()},
    )
    models = {model: info.work for model, info in infos.items() if info.work is not None and model in counted}
    work = {model: own.work(counted[model].amounts) for model, own in models.items()}
    yield from labelled(
        COUNTER,
        "plimsoll_step_flops",
        "Floating point operations of all steps, by kind of op, as counted by the cost model of `plimsoll profile`.",
        ("kind",),
        {model: {(kind,): each.flops for kind, each in kinds.items()} for model, kinds in work.items()},
    )
    yield from labelled(
        COUNTER,
        "plimsoll_step_bytes",
        "Bytes that all steps had to read and write, by kind of op, as counted by the same model.",
        ("kind",),
        {model: {(kind,): each.bytes for kind, each in kinds.items()} for model, kinds in work.items()},
    )
