"""Measures the peaks of a device: bytes per second read from memory, and operations per second of a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.threads import lent
from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.ops.cost import OpCost

READ_BYTES = 2**29
"""Bytes that are read to measure the bandwidth: more than any cache has."""
CPU_PRODUCT = (512, 2048, 4096)
CUDA_PRODUCT = (8192, 8192, 8192)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured limits: `bandwidth` in bytes per second read from memory, `rate` in operations per second."""

    bandwidth: float
    rate: float

    def floor_seconds(self, cost: OpCost) -> float:
        """Return the least seconds that this cost can take: for its bytes or its operations, whichever is more."""
        return max(cost.bytes / self.bandwidth, cost.flops / self.rate)

    def bound(self, cost: OpCost) -> str:
        """Return "memory" or "compute", whichever limits this cost."""
        return "memory" if cost.bytes / self.bandwidth >= cost.flops / self.rate else "compute"

    def best_of(self, other: Peaks) -> Peaks:
        """Return the higher of each limit: disturbances make a measurement too low, never too high."""
        return Peaks(max(self.bandwidth, other.bandwidth), max(self.rate, other.rate))


def measure(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Measure memory reads and matrix products in `dtype` with as many threads as the CPU kernels use; the best of
    several.

    The product's rate is the better of stock torch's (packed by oneDNN on a CPU) and the CPU kernels'.
    """
    with lent():
        found = Peaks(_bandwidth(device), _rate(device, dtype, Linear))
    ours = kernels(dtype) if device.type == "cpu" else None
    if ours is None:
        return found
    # Outside `lent`, because torch's threads spin for a while after an op.
    return found.best_of(Peaks(found.bandwidth, _rate(device, dtype, partial(PackedLinear, ours))))


def _bandwidth(device: torch.device) -> float:
    data = torch.ones(READ_BYTES // 4, device=device)
    return data.nbytes / _best_seconds(data.sum)


def _rate(device: torch.device, dtype: torch.dtype, linear: Callable[[Tensor], Callable[[Tensor], Tensor]]) -> float:
    rows, inputs, outputs = CUDA_PRODUCT if device.type == "cuda" else CPU_PRODUCT
    x = torch.randn(rows, inputs, device=device, dtype=dtype)
    product = linear(torch.randn(outputs, inputs, device=device, dtype=dtype))
    return 2 * rows * inputs * outputs / _best_seconds(lambda: product(x))


@torch.inference_mode()
def _best_seconds(work: Callable[[], Tensor]) -> float:
    """Return the least seconds of some calls, after one call for warm-up."""
    best = float("inf")
    for attempt in range(REPEATS + 1):
        start = time.perf_counter()
        if work().is_cuda:
            torch.cuda.synchronize()
        if attempt:
            best = min(best, time.perf_counter() - start)
    return best
