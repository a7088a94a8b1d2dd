"""Norm, rotation and cache write in Triton: one program for some heads of a row, queries, keys or values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8
"""Heads of a program, so that several programs compute a row of a large model, even if it is the only row."""


@triton.jit(do_not_specialize_on_alignment=["cells"])
def _rotary_cache(
    query,
    keys,
    values,
    heads,
    cos,
    sin,
    cells,
    norm,
    row_stride,
    head_stride,
    cache_head_stride,
    cache_block_stride,
    cache_cell_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    d = tl.arange(0, SIZE_PADDED)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (d < SIZE)
    turned = (head < HEADS + KV_HEADS) & (d < 2 * HALF)
    # Dimension i is paired with i + HALF: the first takes its partner times -sin, the second its partner times sin.
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    sign = tl.where(d < HALF, -1.0, 1.0)
    source = heads + row * row_stride + head * head_stride
    plain = tl.load(source + d, mask=inside, other=0.0)
    other = tl.load(source + partner, mask=turned, other=0.0)
    own = plain
    if NORM:
        normed = head < HEADS + KV_HEADS
        wide = plain.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 1)[:, None] / SIZE + eps)
        weight = tl.load(norm + head * SIZE + d, mask=normed & (d < SIZE), other=0.0).to(tl.float32)
        partner_weight = tl.load(norm + head * SIZE + partner, mask=turned, other=0.0).to(tl.float32)
        own = tl.where(normed, (wide * scale * weight).to(plain.dtype), plain)
        other = (other.to(tl.float32) * scale * partner_weight).to(plain.dtype)
    angle = row * HALF + d % HALF
    c = tl.load(cos + angle, mask=d < 2 * HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=d < 2 * HALF, other=0.0).to(tl.float32)
    rotated = (own.to(tl.float32) * c + sign * other.to(tl.float32) * s).to(plain.dtype)
    result = tl.where(turned, rotated, own)

    tl.store(query + (row * HEADS + head) * SIZE + d, result, mask=inside & (head < HEADS))
    cell = tl.load(cells + row)
    place = cell // BLOCK_SIZE * cache_block_stride + cell % BLOCK_SIZE * cache_cell_stride + d
    key_head = (head - HEADS).to(tl.int64)
    value_head = (head - HEADS - KV_HEADS).to(tl.int64)
    is_key = inside & (head >= HEADS) & (head < HEADS + KV_HEADS)
    tl.store(keys + key_head * cache_head_stride + place, result, mask=is_key)
    tl.store(values + value_head * cache_head_stride + place, result, mask=inside & (head >= HEADS + KV_HEADS))


def launch_rotary_cache(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cells: Tensor,
    norm: Tensor | None,
    eps: float,
) -> Tensor:
    """Norm and rotate heads `[T, H + 2 K, D]`, write keys and values to the cache, and return the queries, contiguous
    `[T, H, D]`.

    cos, sin and norm are contiguous; `op` has checked the arguments.
    """
    rows, count, size = heads.shape
    kv_heads, _, block_size, _ = key_cache.shape
    queries = count - 2 * kv_heads
    out = torch.empty((rows, queries, size), dtype=heads.dtype, device=heads.device)
    _rotary_cache[(rows, triton.cdiv(count, TILE))](
        out,
        key_cache,
        value_cache,
        heads,
        cos,
        sin,
        cells,
        cos if norm is None else norm,
        heads.stride(0),
        heads.stride(1),
        *key_cache.stride()[:3],
        eps,
        HEADS=queries,
        KV_HEADS=kv_heads,
        SIZE=size,
        SIZE_PADDED=triton.next_power_of_2(size),
        HALF=cos.shape[1],
        BLOCK_SIZE=block_size,
        NORM=norm is not None,
        TILE=TILE,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out
