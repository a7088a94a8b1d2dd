"""Measures prompts on every available attention backend, Plimsoll's first; and the cost of splitting a step between two
backends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gpu.attention import CASES, Case, batch_of, cache_for
from gpu.clock import Limits, seconds
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.split import split_backend
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

PROMPTS = tuple(case for case in CASES if case.name.startswith("chunk"))
MIXED = CASES[-1]
BLOCK_SIZES = (16, 256)
"""Tokens per block: the default, and the only size that FlashAttention 2 supports."""
LAUNCHES = 10


def halves() -> list[type[AttentionBackend]]:
    """Return two backends with the same Triton kernels: one for whole steps, one that splits a step into two parts."""
    return [TritonBackend, split_backend(TritonBackend, TritonBackend)]


@torch.inference_mode()
def measure(
    case: Case,
    shape: AttentionShape,
    block_size: int,
    known: Limits,
    rounds: int,
    dtype: torch.dtype,
    device: torch.device,
    backends: Iterable[type[AttentionBackend]] = BACKENDS.values(),
) -> list[dict[str, Any]]:
    """Measure one layer over blocks in random order, without writing the cache: a row for each backend, or why it has
    no figures. `differs`: its largest difference from the first backend that ran. `new_length_ms`: milliseconds for the
    first prompt of a new length, including the preparation of its block tables.
    """
    target = Target(device, dtype, [shape], block_size)
    cache = cache_for([case], shape, dtype, device, block_size)
    query = torch.randn(sum(rows for rows, _ in case.lengths), shape.heads, shape.head_dim, device=device).to(dtype)
    rows: list[dict[str, Any]] = []
    expected: Tensor | None = None
    for backend in backends:
        found: dict[str, Any] = {"name": case.name, "backend": backend.name, "block_size": block_size}
        rows.append(found)
        able = backend.capabilities
        if reason := able.refusal(target) or ("is for comparing" if able.last_resort else None):
            found["reason"] = reason
            continue
        try:
            out, figures = _figures(backend, case, cache, query, rounds)
        except Exception as error:  # noqa: BLE001 - the table shows every failure
            found["reason"] = f"failed: {type(error).__name__}: {error}"
            continue
        expected = out if expected is None else expected
        taken = figures["microseconds"] / 1e6
        found |= figures | {
            "differs": round(float((out - expected).abs().max()), 5),
            "of_rate": round(case.flops(shape) / taken / known.rate, 4),
        }
    return rows


def _figures(
    backend: type[AttentionBackend], case: Case, cache: KvCache, query: Tensor, rounds: int
) -> tuple[Tensor, dict[str, Any]]:
    made = backend(cache)
    step = made.begin(batch_of(case, cache))
    out = step(0, query, None, None).float()
    shorter = Case("", [(max(1, rows - 1), context - 1) for rows, context in case.lengths])
    less = query[: sum(rows for rows, _ in shorter.lengths)]
    _wait(cache.device)
    started = time.perf_counter()
    made.begin(batch_of(shorter, cache))(0, less, None, None)
    _wait(cache.device)
    unseen = time.perf_counter() - started

    def launches() -> None:
        for _ in range(LAUNCHES):
            step(0, query, None, None)

    taken = seconds(launches, cache.device, rounds) / LAUNCHES
    return out, {"microseconds": round(1e6 * taken, 1), "new_length_ms": round(1e3 * unseen, 3)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
