"""The machine's limits: bytes over its memory bandwidth, or operations over its matrix rate, step by step.

A decode step reads every weight once and each sequence's cache; a prompt token takes two operations for each parameter
of the layers, a sampled token also those of the output layer; attention's own operations are left out. The floor of a
workload is the sum over steps of the larger of the two times, with all requests batched perfectly and shared prefixes
computed once. The matrix rate of a CPU is the better of two: oneDNN's product, the fastest in stock torch, and
Plimsoll's own kernels. Without AVX-512, oneDNN multiplies float32, because it packs no bfloat16 there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.linear import PackedLinear
from serving.models import Shape
from serving.workloads import Request, Workload


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured limits: bytes per second read from memory, bfloat16 operations per second in a matrix product."""

    bandwidth: float
    flops: float


def device() -> torch.device:
    """Return the device of every system: the GPU if there is one."""
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


def floor_seconds(workload: Workload, machine: Machine) -> float:
    """Return the minimum seconds for the workload."""
    shape = workload.shape
    seconds = _prefill(shape, workload.prompt_tokens, len(workload.requests), machine)
    for wave in _waves(workload):
        for step in range(1, max(r.output_len for r in wave)):
            running = [len(r.prompt) + step for r in wave if r.output_len > step]
            bytes_read = shape.weight_bytes(len(running)) + shape.kv_bytes * sum(running)
            operations = 2 * (shape.body + shape.head) * len(running)
            seconds += max(bytes_read / machine.bandwidth, operations / machine.flops)
    return seconds


def burst_seconds(workload: Workload, machine: Machine) -> float:
    """Return the minimum seconds until all requests that arrive together at the start have their first tokens."""
    burst = workload.requests[: workload.users]
    return _prefill(workload.shape, sum(len(r.prompt) for r in burst), len(burst), machine)


def _prefill(shape: Shape, tokens: int, requests: int, machine: Machine) -> float:
    operations = 2 * (shape.body * tokens + shape.head * requests)
    return max(shape.weight_bytes(tokens) / machine.bandwidth, operations / machine.flops)


def _waves(workload: Workload) -> list[tuple[Request, ...]]:
    """Return groups of requests that run together: all in one group, or at most as many as there are users in each."""
    if workload.users is None:
        return [workload.requests]
    count = -(-len(workload.requests) // workload.users)
    return [workload.requests[first::count] for first in range(count)]


def _cpu_flops() -> float:
    """Return the rate of oneDNN's product with a weight in its own layout, or of Plimsoll's, whichever is higher."""
    rows = torch.randn(512, 2048, dtype=torch.bfloat16)
    weight = torch.randn(4096, 2048, dtype=torch.bfloat16)
    packs = onednn_packs_bfloat16()
    theirs = onednn_product(weight if packs else weight.float(), 512)
    products = [partial(theirs, rows if packs else rows.float())]
    if (found := kernels(torch.bfloat16)) is not None:
        products.insert(0, partial(PackedLinear(found, weight), rows, Buffer()))
    return max(2 * 512 * 2048 * 4096 / _seconds(product) for product in products for _ in range(10))


def onednn_packs_bfloat16() -> bool:
    """Return whether oneDNN has its own layout for such weights here, which requires AVX-512."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def onednn_product(weight: torch.Tensor, rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return x [rows, inputs] -> [rows, outputs] with a weight [outputs, inputs] in oneDNN's own layout."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return result

    return product


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    result = work()
    if result.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
