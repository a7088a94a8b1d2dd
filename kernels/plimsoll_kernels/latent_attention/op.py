"""Latent attention: checks arguments, then runs kernel or reference."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.dispatch import Implementation, check_floats, use_triton
from plimsoll_kernels.latent_attention.reference import latent_attention_reference
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import check_batch


def latent_attention(
    query: Tensor, cache: Tensor, batch: PagedBatch, *, scale: float, implementation: Implementation = "auto"
) -> Tensor:
    """Attend each row to its sequence's cached vectors up to its own position; see the reference for the terms.

    query `[T, heads, D]`, cache `[num_blocks, block_size, D]` -> contiguous `[T, heads, D]`. Raises ValueError for
    wrong shapes, dtypes and devices. The values of the batch's tensors are not checked, because that would stall a GPU.
    """
    if query.dim() != 3 or cache.dim() != 3 or query.shape[2] != cache.shape[2]:
        raise ValueError(
            f"query {list(query.shape)} and cache {list(cache.shape)} do not match: expected [T, heads, D] and "
            "[num_blocks, block_size, D]"
        )
    check_floats(query=query, cache=cache)
    if scale <= 0:
        raise ValueError(f"scale is {scale}; it must be positive")
    check_batch(batch, query.device)
    if not use_triton(implementation, query):
        return latent_attention_reference(query, cache, batch, scale=scale)
    from plimsoll_kernels.latent_attention.kernel import launch_latent

    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if batch.decodes:
        launch_latent(out, query, cache, batch, scale=scale, chunks=False)
    if batch.max_query_len > 1:
        launch_latent(out, query, cache, batch, scale=scale, chunks=True)
    return out
