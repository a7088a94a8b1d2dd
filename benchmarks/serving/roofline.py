"""What the machine allows: bytes over its memory bandwidth, or operations over its matrix rate, step by step.

A decode step reads every weight once and each sequence's cache; a prefill adds two operations per parameter and
token. The floor of a workload is the sum over steps of the larger of the two times, with all requests batched
perfectly and what they share computed once: no system reaches it, and none can pass it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from serving import models
from serving.workloads import Workload

BYTES = 2
KV_BYTES_PER_TOKEN = 2 * models.LAYERS * models.KV_HEADS * models.HEAD_DIM * BYTES


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured limits: bytes per second read from memory, bfloat16 operations per second in a matrix product."""

    bandwidth: float
    flops: float


def device() -> torch.device:
    """Where every system computes: the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def measure(threads: int) -> Machine:
    """Read 1 GiB and multiply bfloat16 matrices, best of several."""
    torch.set_num_threads(threads)
    where = device()
    data = torch.ones(2**28, device=where)
    bandwidth = max(data.nbytes / _seconds(data.sum) for _ in range(5))
    if where.type == "cpu":
        return Machine(bandwidth, _cpu_flops())
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device=where)
    return Machine(bandwidth, max(2 * 8192**3 / _seconds(lambda: square @ square) for _ in range(10)))


def _cpu_flops() -> float:
    """Of oneDNN's product with a weight in its own layout, the fastest that stock torch has."""
    rows = torch.randn(512, 2048, dtype=torch.bfloat16)
    weight = torch.randn(2048, 4096, dtype=torch.bfloat16)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous(), 512)

    def product() -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        return result

    return max(2 * 512 * 2048 * 4096 / _seconds(product) for _ in range(10))


def floor_seconds(workload: Workload, machine: Machine) -> float:
    """The least time in which the workload could be computed."""
    prompt_flops = 2 * models.PARAMETERS * workload.prompt_tokens
    seconds = max(_weights() / machine.bandwidth, prompt_flops / machine.flops)
    waves = [workload.requests]
    if workload.users:
        waves = [workload.requests[i :: -(-len(workload.requests) // workload.users)] for i in range(2)]
    for wave in waves:
        for step in range(1, max(r.output_len for r in wave)):
            running = [len(r.prompt) + step for r in wave if r.output_len > step]
            bytes_read = _weights() + KV_BYTES_PER_TOKEN * sum(running)
            seconds += max(bytes_read / machine.bandwidth, 2 * models.PARAMETERS * len(running) / machine.flops)
    return seconds


def _weights() -> int:
    return models.PARAMETERS * BYTES


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    result = work()
    if result.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
