"""Shared prefixes of decodes in Triton: a program reads a part of one, for one KV head, once for several sequences.

The queries of a group's sequences that share a KV head are together in a tile, so that a block is read once for all of
them and scores are products of matrices (Hydragen, Juravsky et al., 2024; RelayAttention, Zhu et al., 2024; cascades of
FlashInfer, Ye et al., 2025). Each program leaves partial sums like a decode's splits, and the decode's first split
starts with them. Groups are described on the device, and the grid depends on the most sequences and groups only: a CUDA
graph can contain it, and programs without work return immediately.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.constants import constants
from plimsoll_kernels.paged_attention.decode.splits import MIN_SPLIT_TOKENS
from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_kernels.paged_attention.prefix.tiles import prefix_splits, tile_members
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
from plimsoll_kernels.processors import multiprocessors

TOGETHER = 4
"""Splits whose sums a decode loads at once."""


class PrefixSums(NamedTuple):
    """Results of the splits of prefixes, float32: weighted values `[S, heads, splits, D]`, largest scores, sums of
    weights.

    Only splits with work have written results.
    """

    acc: Tensor
    largest: Tensor
    total: Tensor
    splits: int


@triton.jit
def shared_of(shared, sequence, context, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Tokens of a sequence that its group reads: 0 if its row does not see the first of them (window or chunk)."""
    length = tl.load(shared + sequence)
    if WINDOW + CHUNK > 0:
        length = tl.where(first_seen(context - 1, WINDOW, CHUNK) > 0, 0, length)
    return length


@triton.jit
def _share(length, splits, FEWEST: tl.constexpr):
    """Tokens of a split, a multiple of FEWEST."""
    return tl.cdiv(tl.cdiv(length, FEWEST), splits) * FEWEST


@triton.jit
def add_prefix(
    acc,
    total,
    largest,
    prefix,
    prefix_max,
    prefix_sum,
    place,
    valid,
    length,
    splits,
    SIZE_PADDED: tl.constexpr,
    FEWEST: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Add the sums that splits of a prefix of `length` tokens have left, from `place` [BLOCK_M] on.

    Queries that are not valid are not changed.
    """
    worked = tl.cdiv(length, tl.maximum(_share(length, splits, FEWEST), 1))
    d = tl.arange(0, SIZE_PADDED)
    for first in range(0, worked, TOGETHER):
        for step in tl.static_range(TOGETHER):
            split = first + step
            there = tl.where(valid, split, worked) < worked
            own = place + split
            own_largest = tl.load(prefix_max + own, mask=there, other=float("-inf"))
            own_total = tl.load(prefix_sum + own, mask=there, other=0.0)
            own_acc = tl.load(prefix + own[:, None] * SIZE_PADDED + d[None, :], mask=there[:, None], other=0.0)
            new_largest = tl.maximum(largest, own_largest)
            # For a query that is not valid both may be -inf, and their difference would be NaN.
            anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
            decay = tl.exp2(largest - anchor)
            weight = tl.exp2(own_largest - anchor)
            acc = acc * decay[:, None] + own_acc * weight[:, None]
            total = total * decay + own_total * weight
            largest = new_largest
    return acc, total, largest


@triton.jit(
    do_not_specialize=["num_groups", "table_stride"],
    do_not_specialize_on_alignment=["partial_sum", "members", "starts", "shared"],
)
def _prefix(
    partial,
    partial_max,
    partial_sum,
    query,
    keys,
    values,
    query_starts,
    context_lens,
    block_tables,
    members,
    starts,
    shared,
    num_groups,
    table_stride,
    query_stride,
    query_head_stride,
    head_stride,
    block_stride,
    cell_stride,
    scale,
    softcap,
    slopes,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr,
    MEMBERS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FEWEST: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    group = sequence_of(starts, num_groups, tile, MEMBERS)
    start, count = rows_of(starts, group)
    first = (tile - start // MEMBERS - group) * MEMBERS
    if first >= count:
        return
    # All members' tables have the same blocks.
    lead = tl.load(members + start).to(tl.int64)
    length = tl.load(shared + lead)
    share = _share(length, splits, FEWEST)
    low = split * share
    high = tl.minimum(length, low + share)
    if low >= high:
        return

    row = tl.arange(0, BLOCK_M)
    member = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = (row < MEMBERS * GROUP) & (member < count)
    sequence = tl.load(members + start + member, mask=valid, other=0)
    context = tl.load(context_lens + sequence, mask=valid, other=1)
    if WINDOW + CHUNK > 0:
        valid = valid & (first_seen(context - 1, WINDOW, CHUNK) == 0)
    place = tl.load(query_starts + sequence, mask=valid, other=0).to(tl.int64)
    q = load_queries(query, place * query_stride + head * query_head_stride, valid, SIZE, SIZE_PADDED)
    table = block_tables + lead * table_stride
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride

    slope = of_heads(slopes, head, valid, SLOPES)
    acc, total, largest = no_sums(slope, BLOCK_M, SIZE_PADDED, False)
    whole = low + (high - low) // BLOCK_N * BLOCK_N
    # Every row is after the prefix, and sees all of it or is not valid.
    acc, total, largest = add_span(
        acc, total, largest, q, context - 1, keys, values, table, block_stride, cell_stride, low, whole, scale,
        softcap, slope, SIZE, SIZE_PADDED, BLOCK_SIZE, 0, 0, SOFTCAP, SLOPES, BLOCK_N, False,
    )  # fmt: skip
    acc, total, largest = add_span(
        acc, total, largest, q, context - 1, keys, values, table, block_stride, cell_stride, whole, high, scale,
        softcap, slope, SIZE, SIZE_PADDED, BLOCK_SIZE, 0, 0, SOFTCAP, SLOPES, BLOCK_N, True,
    )  # fmt: skip

    target = (sequence.to(tl.int64) * HEADS + head) * splits + split
    d = tl.arange(0, SIZE_PADDED)
    tl.store(partial + target[:, None] * SIZE_PADDED + d[None, :], acc, mask=valid[:, None])
    tl.store(partial_max + target, largest, mask=valid)
    tl.store(partial_sum + target, total, mask=valid)


def launch_prefix(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    prefixes: PrefixTables,
    terms: ScoreTerms,
    *,
    splits: int | None = None,
) -> PrefixSums:
    """Return the sums of the prefixes that the batch's sequences share; `op` has checked the arguments.

    `splits` overrides the number of programs for a prefix.
    """
    _, heads, size = query.shape
    kv_heads, itemsize = key_cache.shape[0], query.element_size()
    own = constants(query, key_cache, terms)
    sequences, group, padded = batch.context_lens.shape[0], own["GROUP"], own["SIZE_PADDED"]
    members, num_groups = tile_members(size, group, itemsize), prefixes.starts.shape[0] - 1
    splits = splits or prefix_splits(sequences, members, kv_heads, multiprocessors(query.device))
    partial = torch.empty((sequences, heads, splits, padded), dtype=torch.float32, device=query.device)
    extremes, sums = torch.empty((2, sequences, heads, splits), dtype=torch.float32, device=query.device)
    # Programs that read the same blocks are neighbours, so the second reads them from the device's cache.
    _prefix[(sequences // members + num_groups, kv_heads, splits)](
        partial,
        extremes,
        sums,
        query,
        key_cache,
        value_cache,
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        prefixes.members,
        prefixes.starts,
        prefixes.shared,
        num_groups,
        batch.block_tables.stride(0),
        query.stride(0),
        query.stride(1),
        *key_cache.stride()[:3],
        terms.scale,
        terms.softcap or 0.0,
        partial if terms.slopes is None else terms.slopes,
        **own,
        MEMBERS=members,
        BLOCK_M=tile_rows(size, group, itemsize),
        BLOCK_N=tile_tokens(size, itemsize),
        FEWEST=MIN_SPLIT_TOKENS,
        num_warps=4,
        enable_fp_fusion=True,
        num_stages=2,
    )
    return PrefixSums(partial, extremes, sums, splits)
