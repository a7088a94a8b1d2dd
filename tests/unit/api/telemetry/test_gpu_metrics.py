"""Figures of GPUs through a stand-in for NVML: each one that a GPU reports, and none without NVML or a GPU."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from plimsoll_runtime.api.telemetry.gpu_metrics import GpuCollector, GpuReader


class NVMLError(Exception):
    """Any failure."""


class NVMLError_NotSupported(NVMLError):
    """A figure that a GPU does not have."""


class Nvml(ModuleType):
    """NVML with two GPUs. The second one reports neither its power nor ECC errors."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVML_TEMPERATURE_GPU, NVML_VOLATILE_ECC = 0, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.lost = False
        self.absent = False

    def nvmlInit(self) -> None:
        if self.absent:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        if self.lost:
            raise NVMLError("GPU is lost")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return b"GPU-aa" if handle == 0 else "GPU-bb"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return 'H"200'

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=3, total=10, free=6)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1:
            raise NVMLError_NotSupported("Not Supported")
        return 412_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x04 | 0x40 if handle == 0 else 0x01

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        if handle == 1:
            raise NVMLError_NotSupported("Not Supported")
        return 7 + kind


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    module = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def exported(reader: GpuReader, *, uses_gpus: bool = False) -> list[str]:
    """Return the samples of a scrape."""
    registry = CollectorRegistry()
    registry.register(GpuCollector(lambda: uses_gpus, reader))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def reading(**environment: str) -> GpuReader:
    reader = GpuReader(environment)
    assert reader.open()
    reader.read()
    return reader


@pytest.mark.usefixtures("nvml")
def test_each_figure_that_a_gpu_reports() -> None:
    lines = exported(reading())
    first, second = ('gpu="GPU-aa",name="H\\"200"', 'gpu="GPU-bb",name="H\\"200"')
    for line in (
        f"plimsoll_gpu_utilisation_ratio{{{first}}} 0.75",
        f'plimsoll_gpu_memory_bytes{{{first},use="used"}} 3.0',
        f'plimsoll_gpu_memory_bytes{{{second},use="free"}} 7.0',
        f"plimsoll_gpu_power_watts{{{first}}} 412.5",
        f"plimsoll_gpu_temperature_celsius{{{second}}} 61.0",
        f'plimsoll_gpu_throttled{{{first},reason="power_cap"}} 1.0',
        f'plimsoll_gpu_throttled{{{first},reason="hardware_thermal"}} 1.0',
        f'plimsoll_gpu_throttled{{{first},reason="power_brake"}} 0.0',
        f'plimsoll_gpu_throttled{{{second},reason="power_cap"}} 0.0',
        'plimsoll_gpu_ecc_errors_total{gpu="GPU-aa",kind="corrected",name="H\\"200"} 7.0',
        'plimsoll_gpu_ecc_errors_total{gpu="GPU-aa",kind="uncorrected",name="H\\"200"} 8.0',
    ):
        assert line in lines
    assert not [line for line in lines if "GPU-bb" in line and ("power_watts" in line or "ecc" in line)]


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("visible", "expected"), [("0", {"GPU-aa"}), ("1, 0", {"GPU-aa", "GPU-bb"}), ("GPU-b", {"GPU-bb"}), ("", set())]
)
def test_only_visible_gpus(visible: str, expected: set[str]) -> None:
    assert {gpu.uuid for gpu in reading(CUDA_VISIBLE_DEVICES=visible).gpus} == expected


def test_a_failure_is_logged_once_and_has_no_series(nvml: Nvml, caplog: pytest.LogCaptureFixture) -> None:
    reader = reading()
    nvml.lost = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            reader.read()
    assert exported(reader) == []
    assert len(caplog.records) == 1
    nvml.lost = False
    reader.read()
    assert exported(reader)


@pytest.mark.parametrize("absent", ["library", "driver"])
def test_nothing_without_nvml(
    nvml: Nvml, absent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.absent = True
    if absent == "library":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = GpuReader({})
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert exported(reader, uses_gpus=True) == []
        reader.stop()
    assert not caplog.records


def test_it_reads_in_a_thread_once_a_model_uses_a_gpu(nvml: Nvml) -> None:
    reader = GpuReader({})
    assert exported(reader, uses_gpus=False) == []
    assert not reader.thread
    exported(reader, uses_gpus=True)
    thread = reader.thread
    exported(reader, uses_gpus=True)
    assert thread is not None
    assert reader.thread is thread
    reader.stop()
    assert not thread.is_alive()
    assert len(reader.gpus) == 2
