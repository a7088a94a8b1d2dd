"""A tile of a step: its indices, masks and views, made once and used by every layer of the same shape."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.execution.attention.gathered.products import FoldedAttention, GatheredBlocks, Scratch
from plimsoll_runtime.execution.attention.gathered.segments import TILE_SCORES, TilePlan
from plimsoll_runtime.execution.attention.tables import Ints, StepTables, alibi_bias, first_seen
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

MAX_TOKENS = 2048
"""Of a row that is computed alone."""


class TileIndex:
    """Where the rows and tokens of a tile are: n segments of Q rows (shorter ones repeat their last), S tokens.

    rows: `[n, Q]`, rows of the step; position: `[n, Q]`, theirs in their sequence; first_token: `[n, 1]`, position
    of the first gathered token; blocks: `[n, width]`, a segment's last block again where it has fewer.
    """

    def __init__(self, plan: TilePlan, tables: StepTables, shape: AttentionShape, block_size: int) -> None:
        facts = [(s.sequence, s.row, s.queries, s.context, s.first_token(shape)) for s in plan.segments]
        sequence, row, own, context, first = np.array(facts, dtype=np.int64).T[:, :, None]
        step = np.minimum(np.arange(plan.queries), own - 1)
        first_block = first // block_size
        columns = np.minimum(first_block + np.arange(plan.width), (context - 1) // block_size)
        self.rows: Ints = row + step
        self.position: Ints = context - own + step
        self.first_token: Ints = first_block * block_size
        self.blocks: Ints = tables.blocks[tables.first_blocks[sequence] + columns].astype(np.int64)
        self.tokens = plan.width * block_size

    def cache_rows(self, kv_heads: int, strides: tuple[int, int]) -> Tensor:
        """int64 [n x kv_heads x width]: rows of a layer's keys or values (see KvCache.row_strides)."""
        of_head, of_block = strides
        heads = np.arange(kv_heads)[:, None] * of_head
        return torch.from_numpy((self.blocks[:, None, :] * of_block + heads).reshape(-1))

    def mask(self, shape: AttentionShape) -> tuple[Tensor, int] | None:
        """What must not be seen, 0 or -inf: `[n, 1, Q, 1, S - start]`, and start: all see the columns before it."""
        start = 0
        if shape.most_seen is None:
            start = min(self.tokens, int((self.position[:, 0] - self.first_token[:, 0]).min()) + 1)
        token = (self.first_token + np.arange(start, self.tokens))[:, None, :]
        position = self.position[:, :, None]
        hidden = (token > position) | (token < first_seen(shape, position))
        if not hidden.any():
            return None
        mask = torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -math.inf)
        return mask[:, None, :, None, :], start

    def bias(self, shape: AttentionShape) -> Tensor | None:
        """What ALiBi adds to scores, but for a number of each row: `[n, kv_heads, 1, group, S]`, if there is one."""
        token = (self.first_token + np.arange(self.tokens))[:, None]
        found = alibi_bias(shape, token, self.position[:, -1:, None])
        return None if found is None else found.transpose(2, 3)


class Tile:
    """Attention of a tile's rows, over whichever layer's cache it is called with.

    query and out: `[n x Q, heads, D]` in the compute dtype, the tile's rows in its own order, the same memory at
    every call.
    """

    def __init__(
        self,
        index: TileIndex,
        shape: AttentionShape,
        cache: KvCache,
        query: Tensor,
        out: Tensor,
        scratch: Scratch,
    ) -> None:
        (n, queries), group = index.rows.shape, shape.heads // shape.kv_heads
        folded = (n * shape.kv_heads, queries * group, shape.head_dim)
        self._before: tuple[Tensor, Tensor] | None = None
        self._after: tuple[Tensor, Tensor] | None = None
        if queries == 1:
            query, out = query.view(folded), out.view(folded)
        else:
            split = (n, queries, shape.kv_heads, group, shape.head_dim)
            swapped = (n, shape.kv_heads, queries, group, shape.head_dim)
            outer, outer_out = query.view(split).transpose(1, 2), out.view(split).transpose(1, 2)
            query, out = (scratch.take(name, folded, query.dtype) for name in ("folded query", "folded out"))
            self._before = (query.view(swapped), outer)
            self._after = (outer_out, out.view(swapped))
        self._parts = _parts(index, shape, cache, query, out, scratch)

    def __call__(self, keys: Tensor, values: Tensor, sinks: Tensor | None) -> None:
        """keys and values: a layer's cache as rows `[rows, block_size x D]`; sinks float32 `[heads]`."""
        if self._before is not None:
            self._before[0].copy_(self._before[1])
        for part in self._parts:
            part(keys, values, sinks)
        if self._after is not None:
            self._after[0].copy_(self._after[1])


def _parts(
    index: TileIndex, shape: AttentionShape, cache: KvCache, query: Tensor, out: Tensor, scratch: Scratch
) -> list[FoldedAttention]:
    """All of a tile at once; a lone segment head by head where one head's scores fill the cache already."""
    n, count = len(index.rows), len(query)
    size = count if n > 1 else max(1, min(count, TILE_SCORES // (query.shape[1] * index.tokens)))
    cache_rows = index.cache_rows(shape.kv_heads, cache.row_strides(shape)).view(count, -1)
    hidden, bias = index.mask(shape), index.bias(shape)
    group = shape.heads // shape.kv_heads
    parts = []
    for start in range(0, count, size):
        chosen = slice(start, start + size)
        rows = cache_rows[chosen]
        blocks = GatheredBlocks(rows.view(-1), len(rows), cache.block_size, shape.head_dim, cache.dtype, scratch)
        heads = slice(start * group, (start + size) * group) if n == 1 else slice(None)
        part = FoldedAttention(blocks, query[chosen], out[chosen], shape, scratch, heads)
        per_row = part.scores.view(n, -1, index.rows.shape[1], group, index.tokens)
        if bias is not None:
            part.add(per_row, bias if n > 1 else bias[:, chosen])
        if hidden is not None:
            mask, first = hidden
            part.add(per_row[..., first:], mask)
        parts.append(part)
    return parts


class Single:
    """Attention of one row by torch's SDPA, which needs fewer calls than a tile, and is called like one.

    A decode alone takes half a tile's time at a context of 200 tokens and as long at 2,000 (bfloat16, measured); the
    query heads that share a KV head are folded into rows, as `enable_gqa` is slower by a factor.
    """

    def __init__(
        self,
        index: TileIndex,
        shape: AttentionShape,
        cache: KvCache,
        query: Tensor,
        out: Tensor,
        scratch: Scratch,
    ) -> None:
        rows = index.cache_rows(shape.kv_heads, cache.row_strides(shape))
        position, first = int(index.position[0, 0]), int(index.first_token[0, 0])
        seen_from = max(0, shape.first_seen(position) - first)
        seen = slice(seen_from, position + 1 - first)
        size = (cache.block_size, shape.head_dim, cache.dtype, scratch)
        self._blocks = [GatheredBlocks(rows, shape.kv_heads, *size, name) for name in ("keys", "values")]
        self._key, self._value = (b.tensor[None, :, seen] for b in self._blocks)
        folded = (1, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        self._query, self._out = query.view(folded), out.view(folded)
        self._scale = shape.scale

    def __call__(self, keys: Tensor, values: Tensor, sinks: Tensor | None) -> None:
        """keys and values: a layer's cache as rows `[rows, block_size x D]`; there are no sinks."""
        for blocks, cache in zip(self._blocks, (keys, values), strict=True):
            blocks.load(cache)
        self._out.copy_(functional.scaled_dot_product_attention(self._query, self._key, self._value, scale=self._scale))


def tile_of(
    index: TileIndex, shape: AttentionShape, cache: KvCache, query: Tensor, out: Tensor, scratch: Scratch
) -> Tile | Single:
    """The faster of the two for these rows."""
    plain = shape.softcap is None and shape.alibi is None and not shape.sinks
    kind = Single if index.rows.size == 1 and plain and index.tokens <= MAX_TOKENS else Tile
    return kind(index, shape, cache, query, out, scratch)
