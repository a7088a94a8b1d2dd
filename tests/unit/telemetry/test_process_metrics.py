"""Series about the process itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from plimsoll_telemetry import process_metrics
from plimsoll_telemetry.process_metrics import BuildCollector, installed_version, process_collectors

LIMITED = "usage_usec 9000000\nuser_usec 8000000\nnr_periods 70\nnr_throttled 42\nthrottled_usec 1500000\n"
UNLIMITED = "usage_usec 9000000\nuser_usec 8000000\nsystem_usec 1000000\n"


def registry_of(*collectors: object) -> CollectorRegistry:
    made = CollectorRegistry()
    for collector in collectors:
        made.register(collector)  # type: ignore[arg-type]
    return made


def test_a_process_has_its_build_and_what_all_clients_of_prometheus_have() -> None:
    registry = registry_of(*process_collectors("gateway", "1.2.3"))
    labels = {"component": "gateway", "version": "1.2.3"}
    assert registry.get_sample_value("plimsoll_build_info", labels) == 1
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert (registry.get_sample_value(name) or 0) > 0, name


@pytest.mark.parametrize(
    ("text", "seconds", "periods"),
    [(LIMITED, 1.5, 42.0), (UNLIMITED, None, None), ("nr_throttled 1 2\nthrottled_usec x\n\n", None, None)],
)
def test_throttling_is_what_the_cgroup_says(
    tmp_path: Path, text: str, seconds: float | None, periods: float | None
) -> None:
    path = tmp_path / "cpu.stat"
    path.write_text(text)
    registry = registry_of(BuildCollector("runtime", "1", path))
    assert registry.get_sample_value("plimsoll_cpu_throttled_seconds_total") == seconds
    assert registry.get_sample_value("plimsoll_cpu_throttled_periods_total") == periods


def test_without_a_cgroup_there_is_no_throttling(tmp_path: Path) -> None:
    registry = registry_of(BuildCollector("runtime", "1", tmp_path / "missing"))
    assert registry.get_sample_value("plimsoll_cpu_throttled_seconds_total") is None


def test_the_version_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_metrics, "PACKAGE", "no-such-package-is-installed")
    assert installed_version() == "unknown"
