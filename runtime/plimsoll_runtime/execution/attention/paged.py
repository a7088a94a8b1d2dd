"""A step's tables as our kernels read them."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.tables import step_tables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape


def slopes_of(shape: AttentionShape, device: torch.device) -> Tensor | None:
    """float32 [heads] of ALiBi, where there is one."""
    return None if shape.alibi is None else torch.tensor(shape.alibi.slopes, device=device)


def paged_batch(batch: AttentionBatch, cache: KvCache) -> PagedBatch:
    """Lengths and block tables on the cache's device, block 0 where a table is shorter than the longest."""
    tables = step_tables(batch, cache.block_size)
    starts = [*tables.first_rows.tolist(), int(tables.query_lens.sum())]
    padded = torch.from_numpy(tables.padded(int(tables.num_blocks.max())))
    return PagedBatch(
        query_starts=torch.tensor(starts, dtype=torch.int32, device=cache.device),
        context_lens=torch.from_numpy(tables.context_lens).to(cache.device, torch.int32),
        block_tables=padded.to(cache.device, torch.int32),
        max_query_len=int(tables.query_lens.max()),
        max_context_len=int(tables.context_lens.max()),
        decodes=int((tables.query_lens == 1).sum()),
    )
