"""Families of models' series that have labels besides the model's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from plimsoll_runtime.api.telemetry.metrics_key import LABELS
from plimsoll_runtime.residency.spec import ModelName

Values = Mapping[ModelName, Mapping[tuple[str, ...], float]]
"""Values by model, then by the values of the other labels."""


class Buckets(NamedTuple):
    """A histogram: the number of values in each bucket (the last one has no upper bound), and their sum."""

    counts: Sequence[int]
    total: float


def labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, labels: tuple[str, ...], values: Values
) -> Iterator[Metric]:
    """Yield a family whose series have `labels` besides the model's; nothing without values."""
    if not values:
        return
    family = kind(name, text, labels=(*LABELS, *labels))
    for model, own in values.items():
        for others, value in own.items():
            family.add_metric((*model, *others), float(value))
    yield family


def bucketed(name: str, text: str, bounds: Sequence[float], values: Mapping[ModelName, Buckets]) -> Iterator[Metric]:
    """Yield a histogram with these upper bounds for each model; nothing without values."""
    if not values:
        return
    family, ends = HistogramMetricFamily(name, text, labels=LABELS), [*map(str, bounds), "+Inf"]
    for model, own in values.items():
        family.add_metric(model, list(zip(ends, accumulate(own.counts), strict=True)), own.total)
    yield family
