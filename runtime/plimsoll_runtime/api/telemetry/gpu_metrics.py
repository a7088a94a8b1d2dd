"""Metrics of GPUs, read from NVIDIA's management library (NVML) once a second in a thread of their own."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plimsoll_runtime.execution.device.gpus import VISIBLE

logger = logging.getLogger(__name__)

SECONDS = 1.0
"""Time between two readings."""
OF_A_GPU = ("gpu", "name")
REASONS = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of NVML's clock event reasons that mean a lower clock than the work could use."""

Value = TypeVar("Value")


class Gpu(NamedTuple):
    """One reading of a GPU. None: this GPU does not report it. `memory`: used and total bytes.

    `reasons`: bits of REASONS. `corrected`, `uncorrected`: ECC errors since the driver was loaded.
    """

    uuid: str
    name: str
    utilisation: float | None = None
    memory: tuple[int, int] | None = None
    watts: float | None = None
    celsius: float | None = None
    reasons: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None


class GpuReader:
    """Reads the GPUs that this process may use. `gpus` is the last reading; empty without NVML or a device."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._visible = environment.get(VISIBLE)
        self.thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._nvml: Any = None
        self._failed = False
        self.gpus: Sequence[Gpu] = ()

    def start(self) -> None:
        """Start to read, in a thread. Later calls do nothing."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._read_all, name="plimsoll-nvml", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self._ended.set()
        if self.thread is not None:
            self.thread.join()

    def open(self) -> bool:
        """Load NVML; return whether there is one."""
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - without the library, driver or device there are no figures
            logger.debug("no metrics of GPUs: %s", error)
            return False
        self._nvml = nvml
        return True

    def read(self) -> None:
        """Read all GPUs. A failure is logged once, until a reading succeeds again."""
        try:
            handles = map(self._nvml.nvmlDeviceGetHandleByIndex, range(self._nvml.nvmlDeviceGetCount()))
            found = [_gpu(self._nvml, handle) for handle in handles]
        except self._nvml.NVMLError as error:
            self.gpus = ()
            if not self._failed:
                logger.warning("cannot read the GPUs' figures: %s; their metrics are missing until that works", error)
            self._failed = True
            return
        self._failed = False
        self.gpus = [gpu for number, gpu in enumerate(found) if _is_visible(number, gpu.uuid, self._visible)]

    def _read_all(self) -> None:
        if not self.open():
            return
        while not self._ended.is_set():
            self.read()
            self._ended.wait(SECONDS)


class GpuCollector(Collector):
    """Exports the last reading, once `uses_gpus` has returned True."""

    def __init__(self, uses_gpus: Callable[[], bool], reader: GpuReader | None = None) -> None:
        self._uses_gpus = uses_gpus
        self._reader = reader or GpuReader()

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each figure that a GPU reports."""
        if self._uses_gpus():
            self._reader.start()
        gpus = self._reader.gpus
        yield from _family(
            GaugeMetricFamily(
                "plimsoll_gpu_utilisation_ratio",
                "Share of the last sample period in which a kernel ran, from 0 to 1.",
                labels=OF_A_GPU,
            ),
            ((gpu, (), gpu.utilisation) for gpu in gpus),
        )
        yield from _family(
            GaugeMetricFamily(
                "plimsoll_gpu_memory_bytes",
                "Bytes of the GPU's memory by use, of all processes.",
                labels=("gpu", "name", "use"),
            ),
            (
                (gpu, (use,), size)
                for gpu in gpus
                if gpu.memory is not None
                for use, size in (("used", gpu.memory[0]), ("free", gpu.memory[1] - gpu.memory[0]))
            ),
        )
        yield from _family(
            GaugeMetricFamily("plimsoll_gpu_power_watts", "Power that the GPU draws.", labels=OF_A_GPU),
            ((gpu, (), gpu.watts) for gpu in gpus),
        )
        yield from _family(
            GaugeMetricFamily("plimsoll_gpu_temperature_celsius", "Temperature of the GPU.", labels=OF_A_GPU),
            ((gpu, (), gpu.celsius) for gpu in gpus),
        )
        yield from _family(
            GaugeMetricFamily(
                "plimsoll_gpu_throttled",
                "1 while the GPU's clock is lowered for a reason.",
                labels=("gpu", "name", "reason"),
            ),
            (
                (gpu, (reason,), float(bool(gpu.reasons & bit)))
                for gpu in gpus
                if gpu.reasons is not None
                for bit, reason in REASONS.items()
            ),
        )
        yield from _family(
            CounterMetricFamily(
                "plimsoll_gpu_ecc_errors",
                "Memory errors since the driver was loaded: corrected, or uncorrected.",
                labels=("gpu", "name", "kind"),
            ),
            (
                (gpu, (kind,), count)
                for gpu in gpus
                for kind, count in (("corrected", gpu.corrected), ("uncorrected", gpu.uncorrected))
            ),
        )


def _family(
    family: CounterMetricFamily | GaugeMetricFamily, samples: Iterator[tuple[Gpu, tuple[str, ...], float | None]]
) -> Iterator[Metric]:
    """Yield the family with the samples that have a value; nothing without any."""
    for gpu, labels, value in samples:
        if value is not None:
            family.add_metric((gpu.uuid, gpu.name, *labels), float(value))
    if family.samples:
        yield family


def _gpu(nvml: Any, handle: object) -> Gpu:
    """Read one GPU. Raises NVMLError if it has been lost."""

    def reported(read: Callable[[], Value]) -> Value | None:
        try:
            return read()
        except (nvml.NVMLError_NotSupported, AttributeError):
            return None

    def errors(kind: int) -> Callable[[], int]:
        return lambda: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

    def memory() -> tuple[int, int]:
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(found.used), int(found.total)

    return Gpu(
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        utilisation=reported(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100),
        memory=reported(memory),
        watts=reported(lambda: float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000),
        celsius=reported(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        reasons=reported(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
        corrected=reported(errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
        uncorrected=reported(errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _is_visible(number: int, uuid: str, visible: str | None) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names a GPU, by its number or by the beginning of its UUID."""
    if visible is None:
        return True
    return any(name == str(number) or (name and uuid.startswith(name)) for name in map(str.strip, visible.split(",")))
