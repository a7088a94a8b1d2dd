"""The two products of a mixture-of-experts layer: their share of the copy bandwidth, or of the product's rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gpu.clock import Limits, seconds
from plimsoll_kernels.grouped_product.op import grouped_product
from plimsoll_runtime.execution.graphs.capture import Capture

LAUNCHES = 10


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """`experts` gated MLPs (hidden -> inner -> hidden), of which each row uses `chosen`."""

    experts: int
    chosen: int
    hidden: int
    inner: int


QWEN3_30B = MixtureShape(experts=128, chosen=8, hidden=2048, inner=768)
"""Qwen3-30B-A3B, as in its config.json."""


@dataclass(frozen=True, slots=True)
class Case:
    """Number of rows, each with random experts."""

    name: str
    rows: int

    def bytes(self, shape: MixtureShape, read: int, itemsize: int) -> int:
        """Bytes of the matrices of `read` experts (those that any row uses), each read once, and of the states in and
        out of each product.
        """
        matrices = read * 3 * shape.inner * shape.hidden
        states = self.rows * shape.chosen * (2 * shape.hidden + 3 * shape.inner)
        return (matrices + states) * itemsize

    def flops(self, shape: MixtureShape) -> int:
        """Operations of both products."""
        return 2 * self.rows * shape.chosen * 3 * shape.inner * shape.hidden


CASES = (Case("experts, 1 row", 1), Case("experts, 64 rows", 64), Case("experts, 4096 rows", 4096))


@torch.inference_mode()
def measure(
    case: Case,
    shape: MixtureShape,
    known: Limits,
    capture: Capture,
    rounds: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Any]:
    """Measure both products (gate and up, then down), without routing, sorting and activation."""

    def made(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=dtype, device=device)

    gate_up = made(shape.experts, 2 * shape.inner, shape.hidden)
    down = made(shape.experts, shape.hidden, shape.inner)
    random = torch.Generator().manual_seed(0)
    chosen = torch.rand(case.rows, shape.experts, generator=random).argsort(1)[:, : shape.chosen]
    sizes = chosen.flatten().bincount(minlength=shape.experts)
    ends = sizes.cumsum(0).to(device, torch.int32)
    taken, opened = (made(chosen.numel(), width) for width in (shape.hidden, shape.inner))

    def layers() -> torch.Tensor:
        for _ in range(LAUNCHES):
            grouped_product(taken, gate_up, ends, implementation="triton")
            out = grouped_product(opened, down, ends, implementation="triton")
        return out

    elapsed = seconds(capture(layers).replay, device, rounds) / LAUNCHES
    moved = case.bytes(shape, int((sizes > 0).sum()), dtype.itemsize)
    return {
        "name": case.name,
        "microseconds": round(1e6 * elapsed, 1),
        "of_bandwidth": round(moved / elapsed / known.bandwidth, 4),
        "of_rate": round(case.flops(shape) / elapsed / known.rate, 4),
    }
