"""Metrics of the process itself, the same for all components: its build, its CPU and memory, and CPU throttling."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CPU_STAT = Path("/sys/fs/cgroup/cpu.stat")
"""Statistics of the process's cgroup (version 2). Source: docs.kernel.org/admin-guide/cgroup-v2.html."""
PACKAGE = "plimsoll-serving"
UNKNOWN = "unknown"


def installed_version() -> str:
    """Return the version of the installed package; "unknown" if it is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return UNKNOWN


def process_collectors(component: str, build: str) -> tuple[Collector, ...]:
    """Return the collectors for the registry of one process: `BuildCollector`, and the `process_*` series that all
    clients of Prometheus have. `build` is the software's version.
    """
    return (ProcessCollector(registry=None), BuildCollector(component, build))


class BuildCollector(Collector):
    """Collects build information, and CPU throttling if the process's cgroup has a CPU limit."""

    def __init__(self, component: str, build: str, cpu_stat: Path = CPU_STAT) -> None:
        self._component = component
        self._build = build
        self._cpu_stat = cpu_stat

    def collect(self) -> Iterator[Metric]:
        """Yield build information and, if the kernel reports it, throttling."""
        build = GaugeMetricFamily(
            "plimsoll_build_info", "1; the labels are the component and its version.", labels=("component", "version")
        )
        build.add_metric((self._component, self._build), 1)
        yield build
        numbers = _read(self._cpu_stat)
        if "throttled_usec" in numbers:
            yield CounterMetricFamily(
                "plimsoll_cpu_throttled_seconds",
                "Seconds in which threads of the container could not run because of its CPU limit, added up over CPUs.",
                value=numbers["throttled_usec"] / 1e6,
            )
        if "nr_throttled" in numbers:
            yield CounterMetricFamily(
                "plimsoll_cpu_throttled_periods",
                "Periods of the CPU limit in which the container used it up.",
                value=numbers["nr_throttled"],
            )


def _read(path: Path) -> dict[str, int]:
    """Return the numbers of a flat cgroup file by name; empty if there is no such file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
