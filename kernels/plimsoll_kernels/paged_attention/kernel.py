"""Paged attention in Triton: one program for a few rows of one sequence and one KV head.

The queries that share a KV head stand side by side in a program, so each key and value is read once for all of
them, and a chunk of a prompt and a decode are the same kernel with more or fewer rows. Softmax runs online in
base 2 (Dao et al., 2022). Decodes over long contexts are split among programs, whose partial sums a second
kernel joins (flash decoding). Masked loads are zero, so that nothing in unused slots or blocks is ever read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch

MIN_SPLIT_TOKENS = 256
MAX_SPLITS = 32


@triton.jit
def _sequence_of(query_starts, num_sequences, tile, ROWS: tl.constexpr):
    """The sequence of a tile. Sequence i has its first tile at start // ROWS + i: at least as many as it needs."""
    left = 0
    right = num_sequences
    while left < right:
        middle = (left + right) // 2
        if tl.load(query_starts + middle) // ROWS + middle <= tile:
            left = middle + 1
        else:
            right = middle
    return left - 1


@triton.jit
def _attend(
    out,
    partial,
    partial_max,
    partial_sum,
    query,
    keys,
    values,
    query_starts,
    context_lens,
    block_tables,
    num_sequences,
    table_stride,
    query_stride,
    query_head_stride,
    head_stride,
    block_stride,
    slot_stride,
    scale,
    softcap,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    sequence = _sequence_of(query_starts, num_sequences, tile, ROWS)
    start = tl.load(query_starts + sequence)
    queries = tl.load(query_starts + sequence + 1) - start
    first_row = (tile - start // ROWS - sequence) * ROWS
    if first_row >= queries:
        return
    context = tl.load(context_lens + sequence)

    member = tl.arange(0, BLOCK_M)
    row = first_row + member // GROUP
    head = kv_head * GROUP + member % GROUP
    valid = (member < ROWS * GROUP) & (row < queries)
    position = context - queries + row
    d = tl.arange(0, SIZE_PADDED)
    row64 = (start + row).to(tl.int64)
    q_offset = row64 * query_stride + head * query_head_stride
    q = tl.load(query + q_offset[:, None] + d[None, :], mask=valid[:, None] & (d < SIZE)[None, :], other=0.0)

    low = 0
    if WINDOW > 0:
        low = tl.maximum(0, context - queries + first_row - WINDOW + 1) // BLOCK_N * BLOCK_N
    high = tl.minimum(context, context - queries + first_row + ROWS)
    share = tl.cdiv(tl.cdiv(high - low, BLOCK_N), SPLITS) * BLOCK_N
    low = low + split * share
    high = tl.minimum(high, low + share)

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, SIZE_PADDED], tl.float32)
    for n in range(low, high, BLOCK_N):
        token = n + tl.arange(0, BLOCK_N)
        inside = token < high
        block = tl.load(block_tables + sequence.to(tl.int64) * table_stride + token // BLOCK_SIZE, mask=inside, other=0)
        slot = kv_head * head_stride + block.to(tl.int64) * block_stride + (token % BLOCK_SIZE) * slot_stride
        k = tl.load(keys + slot[None, :] + d[:, None], mask=inside[None, :] & (d < SIZE)[:, None], other=0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if SOFTCAP:
            score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
        seen = inside[None, :] & (token[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (token[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score * 1.4426950408889634, float("-inf"))  # times log2(e)
        new_largest = tl.maximum(largest, tl.max(score, 1))
        # A row that has seen nothing yet keeps -inf: subtract 0 then, -inf - -inf would be NaN.
        anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weight = tl.exp2(score - anchor[:, None])
        decay = tl.exp2(largest - anchor)
        v = tl.load(values + slot[:, None] + d[None, :], mask=inside[:, None] & (d < SIZE)[None, :], other=0.0)
        acc = acc * decay[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * decay + tl.sum(weight, 1)
        largest = new_largest

    target = row64 * HEADS + head
    if SPLITS == 1:
        result = acc / tl.where(valid, total, 1.0)[:, None]
        stored = valid[:, None] & (d < SIZE)[None, :]
        tl.store(out + target[:, None] * SIZE + d[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        place = target * SPLITS + split
        tl.store(partial + place[:, None] * SIZE_PADDED + d[None, :], acc, mask=valid[:, None])
        tl.store(partial_max + place, largest, mask=valid)
        tl.store(partial_sum + place, total, mask=valid)


@triton.jit
def _join(
    out,
    partial,
    partial_max,
    partial_sum,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Join the splits of one row and head."""
    target = tl.program_id(0).to(tl.int64)
    place = target * SPLITS + tl.arange(0, SPLITS)
    d = tl.arange(0, SIZE_PADDED)
    largest = tl.load(partial_max + place)
    weight = tl.exp2(largest - tl.max(largest, 0))
    total = tl.sum(tl.load(partial_sum + place) * weight, 0)
    acc = tl.load(partial + place[:, None] * SIZE_PADDED + d[None, :])
    result = tl.sum(acc * weight[:, None], 0) / total
    tl.store(out + target * SIZE + d, result.to(out.dtype.element_ty), mask=d < SIZE)


@triton.jit
def _write_cache(
    keys,
    values,
    key,
    value,
    slots,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    head_stride,
    block_stride,
    slot_stride,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    head = tl.arange(0, HEADS_PADDED)[:, None].to(tl.int64)
    d = tl.arange(0, SIZE_PADDED)[None, :]
    inside = (head < KV_HEADS) & (d < SIZE)
    target = head * head_stride + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * slot_stride + d
    k = tl.load(key + row * key_stride + head * key_head_stride + d, mask=inside, other=0.0)
    v = tl.load(value + row * value_stride + head * value_head_stride + d, mask=inside, other=0.0)
    tl.store(keys + target, k, mask=inside)
    tl.store(values + target, v, mask=inside)


def launch_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    splits: int | None = None,
) -> Tensor:
    """Checked arguments of `op.paged_attention`; `splits` overrides how many programs share a row (a power of 2)."""
    rows, heads, size = query.shape
    kv_heads, _, block_size, _ = key_cache.shape
    group, padded = heads // kv_heads, max(16, triton.next_power_of_2(size))
    sequences = batch.context_lens.shape[0]
    block_m = max(16 if batch.max_query_len == 1 else 64 if padded <= 128 else 32, triton.next_power_of_2(group))
    tile_rows = block_m // group
    tiles = rows // tile_rows + sequences
    splits = splits or _splits(batch, tiles * kv_heads, query.device)
    out = torch.empty((rows, heads, size), dtype=query.dtype, device=query.device)
    partial, extremes, sums = out, out, out
    if splits > 1:
        partial = torch.empty((rows, heads, splits, padded), dtype=torch.float32, device=query.device)
        extremes, sums = partial.new_empty(2, rows, heads, splits)
    _attend[(tiles, kv_heads, splits)](
        out,
        partial,
        extremes,
        sums,
        query,
        key_cache,
        value_cache,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        sequences,
        batch.block_tables.stride(0),
        query.stride(0),
        query.stride(1),
        *key_cache.stride()[:3],
        scale,
        softcap or 0.0,
        HEADS=heads,
        GROUP=group,
        SIZE=size,
        SIZE_PADDED=padded,
        BLOCK_SIZE=block_size,
        WINDOW=window or 0,
        SOFTCAP=softcap is not None,
        ROWS=tile_rows,
        BLOCK_M=block_m,
        BLOCK_N=64 if padded * query.element_size() <= 256 else 32,
        SPLITS=splits,
        num_warps=4,
        num_stages=2,
    )
    if splits > 1:
        _join[(rows * heads,)](out, partial, extremes, sums, SIZE=size, SIZE_PADDED=padded, SPLITS=splits, num_warps=4)
    return out


def launch_write_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Checked arguments of `op.write_cache`."""
    rows, kv_heads, size = key.shape
    _write_cache[(rows,)](
        key_cache,
        value_cache,
        key,
        value,
        slots,
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
    )


def _splits(batch: PagedBatch, programs: int, device: torch.device) -> int:
    """Enough programs to fill the device twice, each with at least `MIN_SPLIT_TOKENS` tokens; decodes only."""
    if batch.max_query_len > 1 or device.type != "cuda":
        return 1
    wanted = 2 * torch.cuda.get_device_properties(device).multi_processor_count // programs
    allowed = min(MAX_SPLITS, batch.max_context_len // MIN_SPLIT_TOKENS)
    return 1 << (max(1, min(wanted, allowed)).bit_length() - 1)
