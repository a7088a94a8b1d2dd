"""Latent attention in plain torch: attention whose keys are its values."""

from __future__ import annotations

from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.reference import paged_attention_reference


def latent_attention_reference(query: Tensor, cache: Tensor, batch: PagedBatch, *, scale: float) -> Tensor:
    """Attend each row to its sequence's cached vectors up to its own position, with each of its heads.

    query: `[T, heads, D]`, the rows of the batch's sequences in order.
    cache: `[num_blocks, block_size, D]`; scores are multiplied by scale.

    Computes in float32 and returns `[T, heads, D]` in the query's dtype.
    """
    vectors = cache[None]
    return paged_attention_reference(query, vectors, vectors, batch, scale=scale)
