"""Norm, rotation and cache write in plain torch, as three ops."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.reference import write_cache_reference
from plimsoll_kernels.rms_norm.reference import rms_norm_reference
from plimsoll_kernels.rotary.reference import rotary_reference


def rotary_cache_reference(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cells: Tensor,
    norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate queries and keys, write keys and values to their cells, and return the queries.

    heads: `[T, H + 2 K, D]`: the queries, keys and values of a row, as one product computes them.
    cos, sin: `[T, R / 2]` with R <= D, as in `rotary_reference`.
    key_cache, value_cache: `[K, num_blocks, block_size, D]`; cells: int64 `[T]`, block x block_size + offset.
    norm: None, or weights `[H + K, D]` of an RMS norm over each query and key before the rotation; eps: its epsilon.

    Returns `[T, H, D]`. Each step rounds once to the dtype of heads, like the separate ops.
    """
    kv_heads = key_cache.shape[0]
    query_key, value = torch.split(heads, [heads.shape[1] - kv_heads, kv_heads], dim=1)
    if norm is not None:
        query_key = rms_norm_reference(query_key, norm, eps)
    rotated = rotary_reference(query_key, cos, sin)
    query, key = torch.split(rotated, [rotated.shape[1] - kv_heads, kv_heads], dim=1)
    write_cache_reference(key, value, key_cache, value_cache, cells)
    return query.contiguous()
