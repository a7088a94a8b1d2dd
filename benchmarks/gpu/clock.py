"""Seconds of work on a device, and what the device could do in them."""

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
    """Bytes a second that a copy on the device reads and writes, and operations a second of a bfloat16 product."""

    bandwidth: float
    rate: float


def seconds(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """The median of some rounds, each until the device is done; some before them are not counted."""
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
    """Measured: a copy of 4 GiB, a product of 8192 x 8192 matrices of random numbers (`scale`: smaller ones)."""
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
