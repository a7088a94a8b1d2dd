"""Writing into the paged cache in Triton: one program for all heads of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize_on_alignment=["cells"])
def _write_cache(
    keys,
    values,
    key,
    value,
    cells,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    head_stride,
    block_stride,
    cell_stride,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cell = tl.load(cells + row)
    head = tl.arange(0, HEADS_PADDED)[:, None].to(tl.int64)
    d = tl.arange(0, SIZE_PADDED)[None, :]
    inside = (head < KV_HEADS) & (d < SIZE)
    target = head * head_stride + cell // BLOCK_SIZE * block_stride + cell % BLOCK_SIZE * cell_stride + d
    k = tl.load(key + row * key_stride + head * key_head_stride + d, mask=inside, other=0.0)
    v = tl.load(value + row * value_stride + head * value_head_stride + d, mask=inside, other=0.0)
    tl.store(keys + target, k, mask=inside)
    tl.store(values + target, v, mask=inside)


def launch_write_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, cells: Tensor) -> None:
    """Launch `op.write_cache` with checked arguments."""
    rows, kv_heads, size = key.shape
    _write_cache[(rows,)](
        key_cache,
        value_cache,
        key,
        value,
        cells,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        *key_cache.stride()[:3],
        KV_HEADS=kv_heads,
        HEADS_PADDED=triton.next_power_of_2(kv_heads),
        SIZE=size,
        SIZE_PADDED=triton.next_power_of_2(size),
        BLOCK_SIZE=key_cache.shape[2],
        num_warps=4,
        enable_fp_fusion=True,
    )
