"""Functions that decodes, prefixes and chunks share in Triton: a tile of queries attends to tiles of keys and values.

A program has up to BLOCK_M queries that share a KV head, and processes BLOCK_N tokens of their sequence at a time.
Softmax runs online in base 2 (Dao et al., 2022): each query has the weighted values' sum, the sum of the weights, and
the largest score so far, by which both are scaled. Every function here is inlined where it is called.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(query_starts, sequence):
    """(first row of a sequence, its number of rows)."""
    start = tl.load(query_starts + sequence)
    return start, tl.load(query_starts + sequence + 1) - start


@triton.jit
def sequence_of(query_starts, num_sequences, tile, ROWS: tl.constexpr):
    """The sequence of a tile. Sequence i has its first tile at start // ROWS + i, which leaves enough tiles for
    each.
    """
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
def load_queries(query, place, valid, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr):
    """[BLOCK_M, SIZE_PADDED] of the heads that begin at `place` [BLOCK_M]; zeros if not valid [BLOCK_M]."""
    d = tl.arange(0, SIZE_PADDED)
    return tl.load(query + place[:, None] + d[None, :], mask=valid[:, None] & (d < SIZE)[None, :], other=0.0)


@triton.jit
def first_seen(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first token that a row at a position sees."""
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(first, position - WINDOW + 1)
    if CHUNK > 0:
        first = tl.maximum(first, position // CHUNK * CHUNK)
    return first


@triton.jit
def of_heads(numbers, head, valid, THERE: tl.constexpr):
    """One float32 for each query's head [BLOCK_M]; zeros without THERE."""
    if THERE:
        return tl.load(numbers + head, mask=valid, other=0.0)
    return tl.zeros_like(head).to(tl.float32)


@triton.jit
def no_sums(sink, BLOCK_M: tl.constexpr, SIZE_PADDED: tl.constexpr, SINKS: tl.constexpr):
    """(weighted values, sums of weights, largest scores) of queries before any key; with SINKS they include the sinks.

    A sink [BLOCK_M] is the score of a key whose value is zero.
    """
    acc = tl.zeros([BLOCK_M, SIZE_PADDED], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    if SINKS:
        total += 1.0
        largest = sink * 1.4426950408889634  # log2(e)
    return acc, total, largest


@triton.jit
def load_keys_and_values(
    keys,
    values,
    table,
    token,
    high,
    block_stride,
    cell_stride,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Keys and values of one head, each [BLOCK_N, SIZE_PADDED], at the tokens of a sequence; zeros from `high` on.

    Without MASKED all tokens are below `high`.
    """
    d = tl.arange(0, SIZE_PADDED)
    readable = (token < high)[:, None] & (d < SIZE)[None, :]
    if MASKED:
        block = tl.load(table + token // BLOCK_SIZE, mask=token < high, other=0).to(tl.int64)
    else:
        block = tl.load(table + token // BLOCK_SIZE).to(tl.int64)
    cell = block * block_stride + (token % BLOCK_SIZE) * cell_stride
    if MASKED or SIZE != SIZE_PADDED:
        k = tl.load(keys + cell[:, None] + d[None, :], mask=readable, other=0.0)
        v = tl.load(values + cell[:, None] + d[None, :], mask=readable, other=0.0)
    else:
        k = tl.load(keys + cell[:, None] + d[None, :])
        v = tl.load(values + cell[:, None] + d[None, :])
    return k, v


@triton.jit
def scores_of(q, k, scale, softcap, slope, distance, SOFTCAP: tl.constexpr, SLOPES: tl.constexpr):
    """float32 [BLOCK_M, BLOCK_N]: final scores with SOFTCAP or SLOPES, otherwise not scaled yet.

    slope [BLOCK_M] x distance [1 or BLOCK_M, BLOCK_N], from a row to a token, is added with SLOPES.
    """
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SOFTCAP:
        score = softcap * (2.0 * tl.sigmoid(2.0 * scale * score / softcap) - 1.0)
    if SLOPES:
        if not SOFTCAP:
            score *= scale
        score += slope[:, None] * distance
    return score


@triton.jit
def add_tile(acc, total, largest, score, v, scale, SCALED: tl.constexpr, EMPTY: tl.constexpr):
    """Add a tile to the sums; scores of hidden tokens are -inf.

    With SCALED the scores are scaled already. With EMPTY a query may have seen no token so far: its largest score stays
    -inf, and 0 is subtracted instead, because -inf - -inf would be NaN.
    """
    factor = 1.4426950408889634  # log2(e)
    if not SCALED:
        factor *= scale
    new_largest = tl.maximum(largest, tl.max(score, 1) * factor)
    anchor = new_largest
    if EMPTY:
        anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weight = tl.exp2(score * factor - anchor[:, None])
    decay = tl.exp2(largest - anchor)
    acc = tl.dot(weight.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    return acc, total * decay + tl.sum(weight, 1), new_largest


@triton.jit
def add_span(
    acc,
    total,
    largest,
    q,
    position,
    keys,
    values,
    table,
    block_stride,
    cell_stride,
    low,
    high,
    scale,
    softcap,
    slope,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SLOPES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add the tokens from low to high to the sums of queries whose rows have the positions `position` [BLOCK_M].

    Without MASKED their number is a multiple of BLOCK_N and all rows see all.
    """
    for n in range(low, high, BLOCK_N):
        token = n + tl.arange(0, BLOCK_N)
        k, v = load_keys_and_values(
            keys, values, table, token, high, block_stride, cell_stride, SIZE, SIZE_PADDED, BLOCK_SIZE, MASKED
        )
        distance = token[None, :] - position[:, None]
        score = scores_of(q, k, scale, softcap, slope, distance, SOFTCAP, SLOPES)
        if MASKED:
            seen = (token < high)[None, :] & (token[None, :] <= position[:, None])
            if WINDOW + CHUNK > 0:
                seen = seen & (token[None, :] >= first_seen(position, WINDOW, CHUNK)[:, None])
            score = tl.where(seen, score, float("-inf"))
        acc, total, largest = add_tile(acc, total, largest, score, v, scale, SOFTCAP or SLOPES, True)
    return acc, total, largest
