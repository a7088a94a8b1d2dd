"""Decodes in Triton: a program reads a part of one sequence's keys and values of one KV head, once for all its queries.

Splits of a long context leave partial sums, which a second kernel joins (flash decoding, Dao et al., 2023). The launch
fixes the number of splits, so a CUDA graph can contain it; on the device, the context decides which of them have work,
and the others return immediately. Sequences with more than one row are left to the prefill kernel. Blocks that a group
of sequences shares are read by the prefix kernel; only the rest of each context is divided here, and its first split
starts with the sums of the shared part.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.constants import constants
from plimsoll_kernels.paged_attention.decode.splits import MIN_SPLIT_TOKENS, decode_splits, most_seen
from plimsoll_kernels.paged_attention.prefix.kernel import TOGETHER, PrefixSums, add_prefix, launch_prefix, shared_of
from plimsoll_kernels.paged_attention.terms import ScoreTerms
from plimsoll_kernels.paged_attention.tile.kernel import (
    add_tile,
    first_seen,
    load_keys_and_values,
    load_queries,
    no_sums,
    of_heads,
    rows_of,
    scores_of,
)
from plimsoll_kernels.processors import multiprocessors
from plimsoll_kernels.tuning.config import LaunchConfig


@triton.jit
def _bounds(context, length, WINDOW: tl.constexpr, CHUNK: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """(first token read, tokens of a split), the second a multiple of BLOCK_N; without the first `length` shared
    tokens.
    """
    low = tl.maximum(first_seen(context - 1, WINDOW, CHUNK) // BLOCK_N * BLOCK_N, length)
    return low, tl.cdiv(tl.cdiv(context - low, BLOCK_N), SPLITS) * BLOCK_N


@triton.jit(
    do_not_specialize=["table_stride", "prefix_splits"],
    do_not_specialize_on_alignment=["partial_sum", "prefix_sum", "shared"],
)
def _decode(
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
    prefix,
    prefix_max,
    prefix_sum,
    shared,
    prefix_splits,
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
    PREFIX: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    FEWEST: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    start, queries = rows_of(query_starts, sequence)
    if queries != 1:
        return
    context = tl.load(context_lens + sequence)
    length = 0
    if PREFIX:
        length = shared_of(shared, sequence, context, WINDOW, CHUNK)
    low, share = _bounds(context, length, WINDOW, CHUNK, BLOCK_N, SPLITS)
    low += split * share
    high = tl.minimum(context, low + share)
    if low >= high:
        return

    member = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + member
    valid = member < GROUP
    row = query + start.to(tl.int64) * query_stride
    q = load_queries(row, head * query_head_stride, valid, SIZE, SIZE_PADDED)
    table = block_tables + sequence * table_stride
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride

    slope = of_heads(slopes, head, valid, SLOPES)
    acc, total, largest = no_sums(of_heads(sinks, head, valid, SINKS), BLOCK_M, SIZE_PADDED, SINKS)
    if SINKS:
        # Only the first split includes the sinks.
        total = tl.where(split == 0, total, 0.0)
        largest = tl.where(split == 0, largest, float("-inf"))
    if PREFIX:
        place = (sequence * HEADS + head) * prefix_splits
        acc, total, largest = add_prefix(
            acc, total, largest, prefix, prefix_max, prefix_sum, place, valid, tl.where(split == 0, length, 0),
            prefix_splits, SIZE_PADDED, FEWEST, TOGETHER,
        )  # fmt: skip
    for n in range(low, high, BLOCK_N):
        token = n + tl.arange(0, BLOCK_N)
        k, v = load_keys_and_values(
            keys, values, table, token, high, block_stride, cell_stride, SIZE, SIZE_PADDED, BLOCK_SIZE, True
        )
        distance = (token - (context - 1))[None, :]
        score = scores_of(q, k, scale, softcap, slope, distance, SOFTCAP, SLOPES)
        seen = token < high
        if WINDOW + CHUNK > 0:
            seen = seen & (token >= first_seen(context - 1, WINDOW, CHUNK))
        score = tl.where(seen[None, :], score, float("-inf"))
        # A split's first tile has a token that is seen (the window may begin in it), so the largest score is finite
        # after it.
        acc, total, largest = add_tile(acc, total, largest, score, v, scale, SOFTCAP or SLOPES, False)

    d = tl.arange(0, SIZE_PADDED)
    if SPLITS == 1:
        target = start.to(tl.int64) * HEADS + head
        stored = valid[:, None] & (d < SIZE)[None, :]
        tl.store(
            out + target[:, None] * SIZE + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=stored
        )
    else:
        place = (sequence * HEADS + head) * SPLITS + split
        tl.store(partial + place[:, None] * SIZE_PADDED + d[None, :], acc, mask=valid[:, None])
        tl.store(partial_max + place, largest, mask=valid)
        tl.store(partial_sum + place, total, mask=valid)


@triton.jit(do_not_specialize_on_alignment=["partial_sum", "shared"])
def _join(
    out,
    partial,
    partial_max,
    partial_sum,
    query_starts,
    context_lens,
    shared,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    PREFIX: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Join the splits of one sequence and head; only splits with work have written results."""
    head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    start, queries = rows_of(query_starts, sequence)
    if queries != 1:
        return
    context = tl.load(context_lens + sequence)
    length = 0
    if PREFIX:
        length = shared_of(shared, sequence, context, WINDOW, CHUNK)
    low, share = _bounds(context, length, WINDOW, CHUNK, BLOCK_N, SPLITS)
    split = tl.arange(0, SPLITS)
    worked = low + split * share < context
    place = (sequence * HEADS + head) * SPLITS + split
    d = tl.arange(0, SIZE_PADDED)
    largest = tl.load(partial_max + place, mask=worked, other=float("-inf"))
    weight = tl.exp2(largest - tl.max(largest, 0))
    total = tl.sum(tl.load(partial_sum + place, mask=worked, other=0.0) * weight, 0)
    acc = tl.load(partial + place[:, None] * SIZE_PADDED + d[None, :], mask=worked[:, None], other=0.0)
    result = tl.sum(acc * weight[:, None], 0) / total
    target = (start.to(tl.int64) * HEADS + head) * SIZE
    tl.store(out + target + d, result.to(out.dtype.element_ty), mask=d < SIZE)


def default_config(size: int, group: int, itemsize: int) -> LaunchConfig:
    """Return a configuration that fits every device since sm_80: two stages of keys and values take 64 KiB at most."""
    padded = max(16, triton.next_power_of_2(size))
    return LaunchConfig(
        block_m=max(16, triton.next_power_of_2(group)),
        block_n=max(16, min(64, 2**14 // (padded * itemsize))),
        num_warps=4,
        num_stages=2,
    )


def candidates(size: int, group: int, itemsize: int) -> list[LaunchConfig]:
    """Return the configurations to try: more bytes in flight or more programs at once. The default comes first.

    The block table is read before its keys, so two stages are one tile ahead and five are two.
    """
    default = default_config(size, group, itemsize)
    tried = [
        LaunchConfig(default.block_m, block_n, num_warps, num_stages)
        for block_n, num_warps, num_stages in (
            (default.block_n, 4, 3),
            (default.block_n, 4, 5),
            (default.block_n, 2, 5),
            (2 * default.block_n, 4, 3),
            (2 * default.block_n, 8, 5),
            (max(16, default.block_n // 2), 2, 5),
        )
    ]
    return list(dict.fromkeys([default, *tried]))


def launch_decode(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    terms: ScoreTerms,
    *,
    config: LaunchConfig | None = None,
    splits: int | None = None,
    prefix_splits: int | None = None,
) -> None:
    """Write to `out` `[T, heads, D]` the rows of the batch's sequences with one row; `op` has checked the arguments.

    `splits`, a power of two, overrides the number of programs for a context, `prefix_splits` that for a shared prefix.
    """
    _, heads, size = query.shape
    kv_heads = key_cache.shape[0]
    own = constants(query, key_cache, terms)
    sequences, group, padded = batch.context_lens.shape[0], own["GROUP"], own["SIZE_PADDED"]
    chosen = config or default_config(size, group, query.element_size())
    processors = multiprocessors(query.device)
    splits = splits or decode_splits(
        sequences * kv_heads, batch.max_context_len, processors, most_seen(terms.window, terms.chunk)
    )
    shared, prefix = out, PrefixSums(out, out, out, 1)
    if batch.prefixes is not None:
        shared = batch.prefixes.shared
        prefix = launch_prefix(
            query,
            key_cache,
            value_cache,
            batch,
            batch.prefixes,
            terms,
            splits=prefix_splits,
        )
    partial, extremes, sums = out, out, out
    if splits > 1:
        partial = torch.empty((sequences, heads, splits, padded), dtype=torch.float32, device=query.device)
        extremes, sums = torch.empty((2, sequences, heads, splits), dtype=torch.float32, device=query.device)
    _decode[(kv_heads, sequences, splits)](
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
        *prefix[:3],
        shared,
        prefix.splits,
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
        PREFIX=batch.prefixes is not None,
        BLOCK_M=chosen.block_m,
        BLOCK_N=chosen.block_n,
        SPLITS=splits,
        FEWEST=MIN_SPLIT_TOKENS,
        TOGETHER=TOGETHER,
        num_warps=chosen.num_warps,
        enable_fp_fusion=True,
        num_stages=chosen.num_stages,
    )
    if splits > 1:
        _join[(heads, sequences)](
            out,
            partial,
            extremes,
            sums,
            batch.query_starts,
            batch.context_lens,
            shared,
            HEADS=heads,
            SIZE=size,
            SIZE_PADDED=padded,
            WINDOW=own["WINDOW"],
            CHUNK=own["CHUNK"],
            PREFIX=batch.prefixes is not None,
            BLOCK_N=chosen.block_n,
            SPLITS=splits,
            num_warps=4,
            enable_fp_fusion=True,
        )
