"""Measures how fast the CPU kernels multiply here, and how close that is to the processor's peak."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plimsoll_kernels.cpu.huge_pages import allocate
from plimsoll_kernels.cpu.op_records import LinearRecord
from plimsoll_kernels.cpu.records import KernelsRecord
from plimsoll_kernels.cpu.threads import thread_count

INPUTS, COLUMNS = 1024, 1024
ROWS = 256
REPEATS = 5
TURN_SECONDS, TURN_CALLS = 1e-3, 16
"""The seconds and the most calls of a turn. On a busy machine most calls of two threads wait for one that lost its
core: the fastest instructions, whose calls take a tenth of a turn, need the most tries.
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Operations per second: `rate` in a product of ROWS rows, `peak` of independent multiplications.

    The peak is that of `best`, the instruction set of this processor that multiplies fastest, whichever is used.
    """

    instructions: str
    threads: int
    rate: float
    best: str
    peak: float

    def __str__(self) -> str:
        other = "" if self.best == self.instructions else f" with {self.best}"
        return (
            f"{self.instructions} on {self.threads} threads: {self.rate / 1e9:.0f} GFLOP/s in a product of {ROWS} "
            f"rows, {self.rate / self.peak:.0%} of the {self.peak / 1e9:.0f} that this processor can multiply{other}"
        )


def measure(used: KernelsRecord, runnable: Sequence[KernelsRecord]) -> Speed:
    """Measure the speed of a product by `used` and the processor's peak, in some milliseconds.

    The peak is that of the fastest of `runnable`: all kernels that run here, in the same dtype.
    """
    threads = thread_count()
    [seconds] = product_seconds([used], ROWS)
    rate = 2 * ROWS * INPUTS * COLUMNS / seconds
    best, peak = max(((kernels, kernels.peak(threads)) for kernels in runnable), key=lambda pair: pair[1])
    return Speed(used.name.decode(), threads, rate, best.name.decode(), peak)


def product_seconds(systems: Sequence[KernelsRecord], rows: int) -> list[float]:
    """Return the least seconds of each of `systems` (instruction sets) for a product of `rows` rows with a weight of
    COLUMNS x INPUTS zeros.

    They are measured in turns, so that other load of the machine affects all of them.
    """
    # As large as the widest elements need, and written: pages that were never written share one page.
    packed = allocate([max(kernels.packed_elements(COLUMNS, INPUTS, 0) for kernels in systems)], torch.float32).fill_(0)
    x, out = torch.zeros(rows, INPUTS), torch.empty(rows, COLUMNS)
    record = LinearRecord(weight=packed.data_ptr(), bias=None, inputs=INPUTS, columns=COLUMNS)
    threads = thread_count()
    least = [float("inf")] * len(systems)
    for _ in range(REPEATS):
        for index, kernels in enumerate(systems):
            now = time.perf_counter()
            end, calls = now + TURN_SECONDS, 0
            while now < end and calls < TURN_CALLS:
                start, calls = now, calls + 1
                kernels.linear(x.data_ptr(), rows, ctypes.byref(record), out.data_ptr(), threads)
                now = time.perf_counter()
                least[index] = min(least[index], now - start)
    return least
