"""Norm, rotation and cache write in one: checks arguments, then runs kernel or reference."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.dispatch import Implementation, check_floats, check_shape, use_triton
from plimsoll_kernels.rotary_cache.reference import rotary_cache_reference


def rotary_cache(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cells: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    implementation: Implementation = "auto",
) -> Tensor:
    """Rotate queries and keys, write keys and values to their cells, and return the queries `[T, H, D]`.

    heads `[T, H + 2 K, D]`, cos and sin `[T, R / 2]`, caches `[K, num_blocks, block_size, D]`, cells int64 `[T]`, norm
    `[H + K, D]` or None: see the reference for the terms. If rows share a cell, any of them remains. Raises ValueError
    for wrong shapes, dtypes and devices; cells are not checked, because that would stall a GPU.
    """
    check_floats(heads=heads, key_cache=key_cache, value_cache=value_cache)
    check_floats(cos=cos, sin=sin)
    if heads.dim() != 3 or key_cache.dim() != 4 or not heads.shape[1] > 2 * key_cache.shape[0]:
        raise ValueError(
            f"heads {list(heads.shape)} and cache {list(key_cache.shape)} do not match: expected "
            "[T, H + 2 K, D] and [K, num_blocks, block_size, D]"
        )
    rows, count, size = heads.shape
    check_shape("key_cache", key_cache, *key_cache.shape[:3], size)
    check_shape("value_cache", value_cache, *key_cache.shape)
    if value_cache.stride() != key_cache.stride():
        raise ValueError(f"the caches have strides {key_cache.stride()} and {value_cache.stride()}; they must agree")
    if cos.dim() != 2 or not 0 < 2 * cos.shape[1] <= size:
        raise ValueError(f"cos is {list(cos.shape)}, expected [T, R / 2] with 0 < R <= {size}")
    check_shape("cos", cos, rows, cos.shape[1])
    check_shape("sin", sin, *cos.shape)
    check_shape("cells", cells, rows)
    if cells.dtype != torch.int64:
        raise ValueError(f"cells is {cells.dtype}, expected torch.int64")
    if norm is not None:
        check_floats(norm=norm)
        check_shape("norm", norm, count - key_cache.shape[0], size)
        norm = norm.contiguous()
    for name, tensor in (("cos", cos), ("cells", cells), ("norm", norm)):
        if tensor is not None and tensor.device != heads.device:
            raise ValueError(f"{name} is on {tensor.device}, but heads is on {heads.device}")
    arguments = (heads, cos.contiguous(), sin.contiguous(), key_cache, value_cache, cells, norm, eps)
    if not use_triton(implementation, heads):
        return rotary_cache_reference(*arguments)
    from plimsoll_kernels.rotary_cache.kernel import launch_rotary_cache

    return launch_rotary_cache(*arguments)
