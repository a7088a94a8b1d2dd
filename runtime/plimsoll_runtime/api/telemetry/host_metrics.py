"""Prometheus metrics of a host: its device, and each model's state, memory and requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.api.telemetry.metrics import COUNTER, GAUGE, Series, families
from plimsoll_runtime.api.telemetry.metrics_key import LABELS
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.report import BOUNDS, Counters, ModelReport, Report, Times
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.residency.states import State

GRANT = ("weights", "workspace", "kv")
PRESSURE = ("none", "some", "full")
SERIES: tuple[Series, ...] = (
    (GAUGE, "plimsoll_host_model_active", "Requests in flight, by model.", "active"),
    (GAUGE, "plimsoll_host_model_waiting", "Requests that wait for their model to wake.", "waiting"),
    (COUNTER, "plimsoll_host_model_loads", "Loads from files since the model was placed.", "loads"),
    (COUNTER, "plimsoll_host_model_wakes", "Wakes from an image since the model was placed.", "wakes"),
)


class HostCollector(Collector):
    """Reads the host's report at each scrape."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        """Yield a metric family for each figure of the report."""
        report = self._host.report()
        yield from _device(report)
        yield from families(SERIES, {_key(model): model for model in report.models})
        yield _states(report)
        yield _images(report)
        yield from _counters(self._host.counters)


def _device(report: Report) -> Iterator[Metric]:
    device, sleepers = report.device, report.sleepers
    for name, text, value in (
        ("plimsoll_host_device_capacity_bytes", "Bytes of the device's memory.", device.capacity),
        ("plimsoll_host_device_line_bytes", "Bytes of the device's memory that the host may use.", device.line),
        (
            "plimsoll_host_device_free_bytes",
            "Bytes below the line that are neither granted to models nor taken by the host itself.",
            device.free,
        ),
        (
            "plimsoll_host_sleepers_capacity_bytes",
            "Bytes of host memory that images of sleeping models may use.",
            sleepers.capacity,
        ),
        (
            "plimsoll_host_sleepers_used_bytes",
            "Bytes of host memory that images use outside of device grants.",
            sleepers.used,
        ),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    yield _used(report)
    pressure = GaugeMetricFamily("plimsoll_host_pressure", "1 for the present memory pressure.", labels=("level",))
    for level in PRESSURE:
        pressure.add_metric((level,), float(report.device.pressure == level))
    yield pressure


def _states(report: Report) -> Metric:
    family = GaugeMetricFamily("plimsoll_host_model_state", "1 for the state a model is in.", labels=(*LABELS, "state"))
    for model in report.models:
        for state in State:
            family.add_metric((*_key(model), state.value), float(model.state == state))
    return family


def _used(report: Report) -> Metric:
    """Return the memory of the device by owner. The owners add up: those of one model to its grant, and all to what is
    used below the line."""
    family = GaugeMetricFamily(
        "plimsoll_host_device_used_bytes",
        "Bytes of the device's memory by owner: of a model its weights, workspace and KV cache; with empty labels "
        "what the host itself takes (reserved).",
        labels=(*LABELS, "owner"),
    )
    for model in report.models:
        for owner in GRANT:
            family.add_metric((*_key(model), owner), getattr(model, owner))
    family.add_metric(("", "", "reserved"), report.device.reserved)
    return family


def _images(report: Report) -> Metric:
    family = GaugeMetricFamily(
        "plimsoll_host_model_image_bytes",
        "Bytes of host memory of a model's image; 0 without one.",
        labels=LABELS,
    )
    for model in report.models:
        family.add_metric(_key(model), model.host_bytes)
    return family


def _counters(counters: Counters) -> Iterator[Metric]:
    for name, text, value in (
        ("plimsoll_host_evictions", "Models put to sleep because others needed their memory.", counters.evictions),
        (
            "plimsoll_host_drops",
            "Weight images dropped from host memory to make space for others, or under memory pressure.",
            counters.drops,
        ),
        ("plimsoll_host_deaths", "Engines that died.", counters.deaths),
        ("plimsoll_host_failures", "Loads and wakes that failed.", counters.failures),
        ("plimsoll_host_resizes", "KV caches shrunk or grown.", counters.resizes),
    ):
        yield CounterMetricFamily(name, text, value=value)
    refusals = CounterMetricFamily(
        "plimsoll_host_refusals",
        "Requests refused because their model could not be woken in time, or too many requests waited.",
        labels=("code",),
    )
    for code, count in counters.refusals.items():
        refusals.add_metric((code,), count)
    yield refusals
    yield _times("plimsoll_host_load_seconds", "Seconds that a load from files took.", counters.load_seconds)
    yield _times("plimsoll_host_wake_seconds", "Seconds that a wake from an image took.", counters.wake_seconds)
    yield _times("plimsoll_host_wait_seconds", "Seconds that a request waited for its model.", counters.wait_seconds)


def _times(name: str, text: str, times: Times) -> Metric:
    ends = [*map(str, BOUNDS), "+Inf"]
    return HistogramMetricFamily(
        name, text, buckets=list(zip(ends, accumulate(times.counts), strict=True)), sum_value=times.total
    )


def _key(model: ModelReport) -> ModelName:
    return ModelName(model.namespace, model.name)
