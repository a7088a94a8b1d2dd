"""Paged attention of one layer: its share of the copy bandwidth, or of the product's rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gpu.clock import Limits, seconds
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.step_tables import paged_batch
from plimsoll_runtime.execution.graphs.capture import Capture
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

BLOCK_SIZE = 16
LAUNCHES = 10


@dataclass(frozen=True, slots=True)
class Case:
    """One step. `lengths`: for each sequence, its rows (tokens to compute) and its cached tokens after the step.
    `shared`: tokens in whole blocks that all sequences share. `together`: whether shared-prefix attention is used.
    """

    name: str
    lengths: Sequence[tuple[int, int]]
    shared: int = 0
    together: bool = True

    def blocks(self, block_size: int) -> int:
        """Number of blocks of all sequences; shared blocks count once."""
        own = sum(-(-(context - self.shared) // block_size) for _, context in self.lengths)
        return own + self.shared // block_size

    def bytes(self, shape: AttentionShape, itemsize: int) -> int:
        """Bytes of keys and values read once (latent vectors, which are both, count once), queries, and outputs. Shared
        tokens count once, whether or not they are read once.
        """
        cached = shape.cached_width * (self.shared + sum(context - self.shared for _, context in self.lengths))
        rows = 2 * shape.query_width * sum(rows for rows, _ in self.lengths)
        return (cached + rows) * itemsize

    def flops(self, shape: AttentionShape) -> int:
        """Floating-point operations of scores, and of weighted sums of values, over the tokens that each row attends
        to.
        """
        pairs = sum(rows * context - rows * (rows - 1) // 2 for rows, context in self.lengths)
        return 4 * shape.heads * shape.head_dim * pairs


CASES = (
    Case("decode 1, context 8192", [(1, 8192)]),
    Case("decode 1, context 131072", [(1, 131072)]),
    Case("decode 16, context 8192", [(1, 8192)] * 16),
    Case("decode 64, context 4096", [(1, 4096)] * 64),
    Case("decode 64, context 8192", [(1, 8192)] * 64),
    Case("decode 256, context 1024", [(1, 1024)] * 256),
    Case("decode 64, 8192 shared and 512 own", [(1, 8704)] * 64, shared=8192),
    Case("decode 64, 8192 shared and 512 own, each by itself", [(1, 8704)] * 64, shared=8192, together=False),
    Case("chunk of 8192", [(8192, 8192)]),
    Case("chunk of 2048 after 6144", [(2048, 8192)]),
    Case("64 decodes and a chunk of 512", [(1, 4096)] * 64 + [(512, 4096)]),
)

DEEPSEEK_V3 = AttentionShape(heads=128, kv_heads=1, head_dim=512 + 64, scale=192**-0.5, latent=True)
"""Attention of DeepSeek V3 (sizes of its config.json), with the key projection absorbed into the queries."""
LATENT_CASES = (
    Case("latent, decode 1, context 8192", [(1, 8192)]),
    Case("latent, decode 64, context 4096", [(1, 4096)] * 64),
    Case("latent, chunk of 2048 after 6144", [(2048, 8192)]),
)


@torch.inference_mode()
def measure(
    case: Case, shape: AttentionShape, known: Limits, cache: KvCache, capture: Capture, rounds: int
) -> dict[str, Any]:
    """Return the microseconds of one layer's attention, and its shares of the copy bandwidth and the product's rate.
    Blocks are in random order, and the cache is not written. Several launches form one graph, to exclude the host's
    launch time.
    """
    batch, backend = batch_of(case, cache), TritonBackend(cache)
    paged = paged_batch(batch, cache)
    if case.together:
        paged = replace(paged, prefixes=backend.prefixes.of(batch)[0])
    step = backend.over([paged], [torch.empty(0, dtype=torch.int64)])
    rows = sum(rows for rows, _ in case.lengths)
    query = torch.randn(rows, shape.heads, shape.head_dim, device=cache.device).to(cache.dtype)
    captured = capture(lambda: [step.attend(0, query, None) for _ in range(LAUNCHES)][-1])
    taken = seconds(captured.replay, cache.device, rounds) / LAUNCHES
    read, multiplied = case.bytes(shape, cache.dtype.itemsize), case.flops(shape)
    return {
        "name": case.name,
        "microseconds": round(1e6 * taken, 1),
        "of_bandwidth": round(read / taken / known.bandwidth, 4),
        "of_rate": round(multiplied / taken / known.rate, 4),
    }


def batch_of(case: Case, cache: KvCache) -> AttentionBatch:
    """Return a batch with blocks anywhere in the cache; only shared blocks belong to several sequences."""
    free = list(range(1, cache.num_blocks))
    random.Random(0).shuffle(free)
    shared = [free.pop() for _ in range(case.shared // cache.block_size)]
    tables = [
        [*shared, *(free.pop() for _ in range(-(-(context - case.shared) // cache.block_size)))]
        for _, context in case.lengths
    ]
    rows = [rows for rows, _ in case.lengths]
    cells = torch.zeros(sum(rows), dtype=torch.int64, device=cache.device)
    return AttentionBatch(rows, [context for _, context in case.lengths], BlockTables.of(tables), cells)


def cache_for(
    cases: Sequence[Case],
    shape: AttentionShape,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int = BLOCK_SIZE,
) -> KvCache:
    """Return a cache of one layer for the largest case, with random numbers, because products of zeros are faster."""
    blocks = 1 + max(case.blocks(block_size) for case in cases)
    cache = KvCache([shape], blocks, block_size, dtype, device)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    return cache
