"""Metrics of the processes that engines run in, which are not the process that is scraped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from plimsoll_runtime.api.telemetry.metrics_key import LABELS
from plimsoll_runtime.residency.spec import ModelName


def engine_processes(pids: Mapping[ModelName, int]) -> Iterator[Metric]:
    """Yield CPU time and memory of each engine's process. A process that has ended has no samples."""
    seconds = CounterMetricFamily(
        "plimsoll_engine_process_cpu_seconds",
        "Seconds of CPU time, user and system, of the engine's process; of a parallel group without its ranks.",
        labels=LABELS,
    )
    resident = GaugeMetricFamily(
        "plimsoll_engine_process_resident_bytes",
        "Bytes of resident memory of the engine's process; of a parallel group without its ranks.",
        labels=LABELS,
    )
    for key, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue
        seconds.add_metric(key, times.user + times.system)
        resident.add_metric(key, memory.rss)
    yield seconds
    yield resident
