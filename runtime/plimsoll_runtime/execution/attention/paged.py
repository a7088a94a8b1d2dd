"""A step's tables as our kernels read them."""

from __future__ import annotations

import numpy as np
import torch

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.block_tables import gathered
from plimsoll_runtime.execution.attention.tables import step_tables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.layers.device_copy import sent


def paged_batch(batch: AttentionBatch, cache: KvCache) -> PagedBatch:
    """Lengths and block tables on the cache's device, whatever block's number where one is shorter than the longest."""
    tables = step_tables(batch, cache.block_size)
    rows, width = int(tables.query_lens.sum()), int(tables.num_blocks.max())
    if (there := batch.block_tables.there) is not None:
        starts, contexts, begins = there.query_starts, there.context_lens, there.begins
    else:
        numbers = np.concatenate([tables.first_rows, [rows], tables.context_lens, tables.first_blocks])
        # The first of three parts is the one that is longer by one.
        starts, contexts, begins = sent(numbers, cache.device).tensor_split(3)
    return PagedBatch(
        query_starts=starts.to(torch.int32),
        context_lens=contexts.to(torch.int32),
        block_tables=gathered(batch.block_tables.on(cache.device), begins, width),
        max_query_len=int(tables.query_lens.max()),
        max_context_len=int(tables.context_lens.max()),
        decodes=int((tables.query_lens == 1).sum()),
    )
