"""Chunks in Triton: a program computes a few rows of one sequence, for all queries that share a KV head.

The queries of a KV head are together in a program, so each key and value is read once for all of them. Tokens that no
row of the program sees are not read; only tiles at the diagonal and at the window's edge are masked. Programs with the
most work start first. Sequences with one row are left to the decode kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.constants import constants
from plimsoll_kernels.paged_attention.terms import ScoreTerms
from plimsoll_kernels.paged_attention.tile.kernel import (
    add_span,
    first_seen,
    load_queries,
    no_sums,
    of_heads,
    rows_of,
    sequence_of,
)
from plimsoll_kernels.paged_attention.tile.sizes import tile_rows, tile_tokens
from plimsoll_kernels.tuning.config import LaunchConfig


@triton.jit(do_not_specialize=["num_sequences", "table_stride"])
def _prefill(
    out,
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
    cell_stride,
    scale,
    softcap,
    slopes,
    sinks,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr,
    SINKS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = sequence_of(query_starts, num_sequences, tile, ROWS)
    start, queries = rows_of(query_starts, sequence)
    first_row = (tile - start // ROWS - sequence) * ROWS
    if (first_row >= queries) | (queries == 1):
        return
    context = tl.load(context_lens + sequence)

    member = tl.arange(0, BLOCK_M)
    row = first_row + member // GROUP
    head = kv_head * GROUP + member % GROUP
    valid = (member < ROWS * GROUP) & (row < queries)
    row64 = (start + row).to(tl.int64)
    q = load_queries(query, row64 * query_stride + head * query_head_stride, valid, SIZE, SIZE_PADDED)
    table = block_tables + sequence.to(tl.int64) * table_stride
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride

    first_position = context - queries + first_row
    position = context - queries + row
    high = tl.minimum(context, first_position + ROWS)
    whole_high = (first_position + 1) // BLOCK_N * BLOCK_N  # up to here every row sees every token
    low = 0
    whole_low = 0
    if WINDOW + CHUNK > 0:
        low = first_seen(first_position, WINDOW, CHUNK) // BLOCK_N * BLOCK_N
        # From here on, every row's window or chunk has begun; that of the last row begins last.
        whole_low = tl.cdiv(first_seen(high - 1, WINDOW, CHUNK), BLOCK_N) * BLOCK_N
        whole_low = tl.minimum(tl.maximum(whole_low, low), tl.maximum(whole_high, low))
        whole_high = tl.maximum(whole_high, whole_low)

    slope = of_heads(slopes, head, valid, SLOPES)
    acc, total, largest = no_sums(of_heads(sinks, head, valid, SINKS), BLOCK_M, SIZE_PADDED, SINKS)
    if WINDOW + CHUNK > 0:
        acc, total, largest = add_span(
            acc, total, largest, q, position, keys, values, table, block_stride, cell_stride, low, whole_low, scale,
            softcap, slope, SIZE, SIZE_PADDED, BLOCK_SIZE, WINDOW, CHUNK, SOFTCAP, SLOPES, BLOCK_N, True,
        )  # fmt: skip
    acc, total, largest = add_span(
        acc, total, largest, q, position, keys, values, table, block_stride, cell_stride, whole_low, whole_high, scale,
        softcap, slope, SIZE, SIZE_PADDED, BLOCK_SIZE, WINDOW, CHUNK, SOFTCAP, SLOPES, BLOCK_N, False,
    )  # fmt: skip
    acc, total, largest = add_span(
        acc, total, largest, q, position, keys, values, table, block_stride, cell_stride, whole_high, high, scale,
        softcap, slope, SIZE, SIZE_PADDED, BLOCK_SIZE, WINDOW, CHUNK, SOFTCAP, SLOPES, BLOCK_N, True,
    )  # fmt: skip

    result = acc / tl.where(valid, total, 1.0)[:, None]
    target = row64 * HEADS + head
    d = tl.arange(0, SIZE_PADDED)
    stored = valid[:, None] & (d < SIZE)[None, :]
    tl.store(out + target[:, None] * SIZE + d[None, :], result.to(out.dtype.element_ty), mask=stored)


def default_config(size: int, group: int, itemsize: int) -> LaunchConfig:
    """Return a configuration that fits every device since sm_80."""
    return LaunchConfig(tile_rows(size, group, itemsize), tile_tokens(size, itemsize), num_warps=4, num_stages=2)


def candidates(size: int, group: int, itemsize: int) -> list[LaunchConfig]:
    """Return the configurations to try: larger tiles, and more keys and values in flight. The default comes first.

    The block table is read before its keys, so two stages are one tile ahead and five are two.
    """
    default = default_config(size, group, itemsize)
    wide = default.block_n
    tried = [
        LaunchConfig(max(block_m, default.block_m), block_n, num_warps, num_stages)
        for block_m, block_n, num_warps, num_stages in (
            (64, wide, 4, 3),
            (64, wide, 4, 5),
            (128, wide, 8, 3),
            (128, wide, 8, 5),
            (128, 2 * wide, 8, 3),
            (128, wide // 2, 4, 5),
        )
        if block_n >= 16
    ]
    return list(dict.fromkeys([default, *tried]))


def launch_prefill(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    terms: ScoreTerms,
    *,
    config: LaunchConfig | None = None,
) -> None:
    """Write to `out` `[T, heads, D]` the rows of sequences with several rows; `op` has checked the arguments."""
    rows, _, size = query.shape
    kv_heads = key_cache.shape[0]
    own = constants(query, key_cache, terms)
    sequences, group = batch.context_lens.shape[0], own["GROUP"]
    chosen = config or default_config(size, group, query.element_size())
    tile_rows = chosen.block_m // group
    _prefill[(rows // tile_rows + sequences, kv_heads)](
        out,
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
        terms.scale,
        terms.softcap or 0.0,
        out if terms.slopes is None else terms.slopes,
        out if terms.sinks is None else terms.sinks,
        **own,
        SINKS=terms.sinks is not None,
        ROWS=tile_rows,
        BLOCK_M=chosen.block_m,
        BLOCK_N=chosen.block_n,
        num_warps=chosen.num_warps,
        enable_fp_fusion=True,
        num_stages=chosen.num_stages,
    )
