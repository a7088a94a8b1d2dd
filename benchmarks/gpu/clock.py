"""Times work on a device, and measures the device's limits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

COPY_BYTES, SQUARE = 2**32, 8192
WARM = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes per second that a copy on the device moves (bytes read plus bytes written), and operations per second of a
    bfloat16 matrix product.
    """

    bandwidth: float
    rate: float


def seconds(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Return the median seconds of `work` over several rounds, each until the device is done, after some uncounted
    ones.
    """
    times = []
    for number in range(WARM + rounds):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        if number >= WARM:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def limits(device: torch.device, rounds: int, scale: float = 1.0) -> Limits:
    """Measure a copy of 4 GiB and a product of random 8192 x 8192 matrices (`scale`: smaller ones)."""
    source = torch.ones(int(COPY_BYTES * scale) // 4, device=device)
    target = torch.empty_like(source)
    side = max(64, int(SQUARE * scale))
    square = torch.randn(side, side, device=device).bfloat16()
    copying = seconds(lambda: target.copy_(source), device, rounds)
    multiplying = seconds(lambda: square @ square, device, rounds)
    return Limits(2 * source.nbytes / copying, 2 * side**3 / multiplying)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
