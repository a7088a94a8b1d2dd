"""Latent attention in Triton: a program reads each vector once, as key and value of all its heads.

A program has some heads of one row or, if those do not fill its tile, of several rows of one sequence. Vectors of
DeepSeek have 512 numbers and 64 more: the largest power of two is one tile and the rest a second, so that nothing is
padded to 1,024. Long contexts of decodes are divided among programs, and a second kernel joins the results (see
`paged_attention.decode.kernel`). Decodes and chunks are two launches, each of which skips the other's sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.latent_attention.tiles import head_tiles, tile_rows
from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.decode.splits import decode_splits
from plimsoll_kernels.paged_attention.tile.kernel import rows_of, sequence_of
from plimsoll_kernels.processors import multiprocessors
from plimsoll_kernels.tuning.config import LaunchConfig

PIECE = 128
"""Numbers of a head that one program joins: with those of 64 splits they fit in registers."""


@triton.jit
def _share(context, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """Tokens of a split, a multiple of BLOCK_N."""
    return tl.cdiv(tl.cdiv(context, BLOCK_N), SPLITS) * BLOCK_N


@triton.jit(do_not_specialize=["num_sequences", "table_stride"], do_not_specialize_on_alignment=["partial_sum"])
def _latent(
    out,
    partial,
    partial_max,
    partial_sum,
    query,
    cache,
    query_starts,
    context_lens,
    block_tables,
    num_sequences,
    table_stride,
    query_stride,
    query_head_stride,
    block_stride,
    cell_stride,
    scale,
    HEADS: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    split = tl.program_id(2)
    if CHUNKS:
        # Programs with the most work start first.
        tile = tl.num_programs(0) - 1 - tl.program_id(0)
        sequence = sequence_of(query_starts, num_sequences, tile, ROWS)
        start, queries = rows_of(query_starts, sequence)
        first_row = (tile - start // ROWS - sequence) * ROWS
        if (first_row >= queries) | (queries == 1):
            return
    else:
        sequence = tl.program_id(0)
        start, queries = rows_of(query_starts, sequence)
        first_row = 0
        if queries != 1:
            return
    context = tl.load(context_lens + sequence)
    last = tl.minimum(context, context - queries + first_row + ROWS)
    share = _share(last, BLOCK_N, SPLITS)
    low = split * share
    high = tl.minimum(last, low + share)
    if low >= high:
        return

    member = tl.arange(0, BLOCK_M)
    row = first_row + member // TILE_HEADS
    head = tl.program_id(1) * TILE_HEADS + member % TILE_HEADS
    valid = (member < ROWS * TILE_HEADS) & (row < queries) & (head < HEADS)
    position = context - queries + row
    row64 = (start + row).to(tl.int64)
    main = tl.arange(0, MAIN)
    rest = MAIN + tl.arange(0, REST)
    own = query + (row64 * query_stride + head * query_head_stride)[:, None]
    q = tl.load(own + main[None, :], mask=valid[:, None] & (main < SIZE)[None, :], other=0.0)
    q_rest = tl.load(own + rest[None, :], mask=valid[:, None] & (rest < SIZE)[None, :], other=0.0)
    table = block_tables + sequence.to(tl.int64) * table_stride

    factor = scale * 1.4426950408889634  # log2(e)
    acc = tl.zeros([BLOCK_M, MAIN], tl.float32)
    acc_rest = tl.zeros([BLOCK_M, REST], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for n in range(low, high, BLOCK_N):
        token = n + tl.arange(0, BLOCK_N)
        there = token < high
        block = tl.load(table + token // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        cell = (cache + block * block_stride + (token % BLOCK_SIZE) * cell_stride)[:, None]
        c = tl.load(cell + main[None, :], mask=there[:, None] & (main < SIZE)[None, :], other=0.0)
        c_rest = tl.load(cell + rest[None, :], mask=there[:, None] & (rest < SIZE)[None, :], other=0.0)
        score = tl.dot(q, tl.trans(c), input_precision="ieee")
        score = tl.dot(q_rest, tl.trans(c_rest), score, input_precision="ieee")
        # Every row sees the first token of its first tile: a chunk starts at 0, and a decode's tokens precede its row.
        score = tl.where(there[None, :] & (token[None, :] <= position[:, None]), score * factor, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp2(score - new_largest[:, None])
        decay = tl.exp2(largest - new_largest)
        weighed = weight.to(c.dtype)
        acc = tl.dot(weighed, c, acc * decay[:, None], input_precision="ieee")
        acc_rest = tl.dot(weighed, c_rest, acc_rest * decay[:, None], input_precision="ieee")
        total = total * decay + tl.sum(weight, 1)
        largest = new_largest

    stored = valid[:, None] & (main < SIZE)[None, :]
    stored_rest = valid[:, None] & (rest < SIZE)[None, :]
    if SPLITS == 1:
        target = out + ((row64 * HEADS + head) * SIZE)[:, None]
        tl.store(target + main[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=stored)
        tl.store(target + rest[None, :], (acc_rest / total[:, None]).to(out.dtype.element_ty), mask=stored_rest)
    else:
        place = (sequence.to(tl.int64) * HEADS + head) * SPLITS + split
        target = partial + (place * SIZE)[:, None]
        tl.store(target + main[None, :], acc, mask=stored)
        tl.store(target + rest[None, :], acc_rest, mask=stored_rest)
        tl.store(partial_max + place, largest, mask=valid)
        tl.store(partial_sum + place, total, mask=valid)


@triton.jit(do_not_specialize_on_alignment=["partial_sum"])
def _join_latent(
    out,
    partial,
    partial_max,
    partial_sum,
    query_starts,
    context_lens,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Join a piece of the splits of one sequence and head; only splits with work have written results."""
    head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    start, queries = rows_of(query_starts, sequence)
    if queries != 1:
        return
    context = tl.load(context_lens + sequence)
    split = tl.arange(0, SPLITS)
    worked = split * _share(context, BLOCK_N, SPLITS) < context
    place = (sequence * HEADS + head) * SPLITS + split
    d = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    inside = d < SIZE
    largest = tl.load(partial_max + place, mask=worked, other=float("-inf"))
    weight = tl.exp2(largest - tl.max(largest, 0))
    total = tl.sum(tl.load(partial_sum + place, mask=worked, other=0.0) * weight, 0)
    acc = tl.load(partial + place[:, None] * SIZE + d[None, :], mask=worked[:, None] & inside[None, :], other=0.0)
    result = tl.sum(acc * weight[:, None], 0) / total
    target = (start.to(tl.int64) * HEADS + head) * SIZE
    tl.store(out + target + d, result.to(out.dtype.element_ty), mask=inside)


def default_config(heads: int, itemsize: int) -> LaunchConfig:
    """Return a configuration that fits every device since sm_80. Not tuned: a stage of vectors of 576 numbers takes 36
    KiB.
    """
    return LaunchConfig(tile_rows(heads), block_n=32 if itemsize == 2 else 16, num_warps=8, num_stages=2)


def launch_latent(
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    chunks: bool,
    splits: int | None = None,
) -> None:
    """Write to `out` `[T, heads, D]` the rows of sequences with one row, or if `chunks` of those with several.

    `op` has checked the arguments. `splits`, a power of two, overrides the number of programs for a decode's context.
    """
    rows, heads, size = query.shape
    sequences, chosen = batch.context_lens.shape[0], default_config(heads, query.element_size())
    own_heads = min(heads, chosen.block_m)
    tile = chosen.block_m // own_heads if chunks else 1
    if chunks:
        splits = 1
    elif splits is None:
        programs, processors = sequences * head_tiles(heads), multiprocessors(query.device)
        splits = decode_splits(programs, batch.max_context_len, processors)
    partial, extremes, sums = out, out, out
    if splits > 1:
        partial = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=query.device)
        extremes, sums = torch.empty((2, sequences, heads, splits), dtype=torch.float32, device=query.device)
    main = max(16, triton.next_power_of_2(size + 1) // 2)
    grid = (rows // tile + sequences if chunks else sequences, head_tiles(heads), splits)
    _latent[grid](
        out,
        partial,
        extremes,
        sums,
        query,
        cache,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        sequences,
        batch.block_tables.stride(0),
        query.stride(0),
        query.stride(1),
        cache.stride(0),
        cache.stride(1),
        scale,
        HEADS=heads,
        TILE_HEADS=own_heads,
        SIZE=size,
        MAIN=main,
        REST=max(16, triton.next_power_of_2(max(1, size - main))),
        BLOCK_SIZE=cache.shape[1],
        ROWS=tile,
        BLOCK_M=chosen.block_m,
        BLOCK_N=chosen.block_n,
        SPLITS=splits,
        CHUNKS=chunks,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        _join_latent[(heads, sequences, triton.cdiv(size, PIECE))](
            out,
            partial,
            extremes,
            sums,
            batch.query_starts,
            batch.context_lens,
            HEADS=heads,
            SIZE=size,
            PIECE=PIECE,
            BLOCK_N=chosen.block_n,
            SPLITS=splits,
            num_warps=4,
            enable_fp_fusion=True,
        )
