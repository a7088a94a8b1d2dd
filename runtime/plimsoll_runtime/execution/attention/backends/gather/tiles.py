"""A tile of a step: its indices, masks and views, which all layers of one shape share, and its matrix products."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.execution.attention.backends.gather.plan import TILE_SCORES, TilePlan
from plimsoll_runtime.execution.attention.step_tables import Ints, StepTables, alibi_bias, first_seen
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape


@lru_cache(None)
def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that the products read: bfloat16 if the CPU multiplies it in hardware, float32 otherwise.

    Without hardware support, stock torch takes 3 to 50 times as long for bfloat16 or float16, so gathered blocks are
    converted to float32.
    """
    if dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return dtype
    return torch.float32


class Scratch:
    """Named buffers that only grow, because new pages for each tile's scores would cost more than the scores."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a contiguous, uninitialised tensor. Tensors of one name and dtype share their memory."""
        count = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < count:
            with torch.inference_mode(False):
                buffer = self._buffers[name, dtype] = torch.empty(count, dtype=dtype)
        return buffer[:count].view(shape)


class GatheredBlocks:
    """Blocks of a layer's cache, gathered as `[N, S, D]` in the compute dtype: N is `count`, S is width x block_size
    tokens.

    `index` int64 [N x width] selects rows of a layer's keys or values, `[rows, block_size x D]`. Keys and values may
    use one buffer in turn; buffers that are needed at the same time have different names.
    """

    def __init__(
        self,
        index: Tensor,
        count: int,
        block_size: int,
        head_dim: int,
        cached: torch.dtype,
        scratch: Scratch,
        name: str = "blocks",
    ) -> None:
        rows = (len(index), block_size * head_dim)
        self._index = index
        self._blocks = scratch.take(name, rows, cached)
        computed = compute_dtype(cached)
        self._widened = None if computed is cached else scratch.take(f"widened {name}", rows, computed)
        self.tensor = (self._blocks if self._widened is None else self._widened).view(count, -1, head_dim)

    def load(self, cache: Tensor) -> None:
        """Fill `tensor` from a layer's keys or values."""
        torch.index_select(cache, 0, self._index, out=self._blocks)
        if self._widened is not None:
            self._widened.copy_(self._blocks)


class FoldedAttention:
    """softmax(scale q k^T + mask) v for N pairs of a segment and a KV head, M = queries x group rows each.

    query and out: `[N, M, D]` in the compute dtype, read and written at each call.

    bfloat16 through oneDNN runs at twice float32's speed, but a product is rounded to bfloat16: a score of 10 would be
    off by 0.03. The rounding error is itself a product, q k^T - round(q k^T), which `baddbmm` accumulates in float32.
    The two add up to 16 bits of mantissa, and the second pass reads the keys from the CPU's cache. Relative error of
    the output on random normal data: 0.0022 this way, 0.0018 to 0.0022 with torch's SDPA, 0.004 to 0.014 with rounded
    scores, 0.0016 for the exact result rounded to bfloat16.
    """

    def __init__(
        self,
        blocks: GatheredBlocks,
        query: Tensor,
        out: Tensor,
        shape: AttentionShape,
        scratch: Scratch,
        heads: slice,
    ) -> None:
        """`heads`: the query heads of the shape that the pairs contain."""
        size = (query.shape[0], query.shape[1], blocks.tensor.shape[1])
        self._blocks = blocks
        self._query = query
        self._out = out
        self._transposed = blocks.tensor.transpose(1, 2)
        self._scale = shape.scale
        self._softcap = shape.softcap
        self._narrow = query.dtype is not torch.float32
        self.scores = scratch.take("scores", size, torch.float32)
        self._product = scratch.take("product", size, query.dtype) if self._narrow else self.scores
        self._rest = scratch.take("rest", size, torch.float32) if self._narrow else self.scores
        self._added: list[tuple[Tensor, Tensor]] = []
        self._heads = heads
        self._group = shape.heads // shape.kv_heads
        self._latent = shape.latent

    def add(self, scores: Tensor, bias: Tensor) -> None:
        """Add a bias, or a mask of 0 and -inf, to this view of `scores` in every call."""
        self._added.append((scores, bias))

    def __call__(self, keys: Tensor, values: Tensor, sinks: Tensor | None) -> None:
        """Attend to a layer's cache, keys and values as rows `[rows, block_size x D]`; sinks float32 `[heads]`."""
        self._blocks.load(keys)
        self._score()
        scores = self.scores
        if self._softcap is not None:
            scores.div_(self._softcap).tanh_().mul_(self._softcap)
        for view, bias in self._added:
            view.add_(bias)
        share = None if sinks is None else self._beside(sinks[self._heads])
        torch.softmax(scores, -1, out=scores)
        if not self._latent:
            self._blocks.load(values)
        weights = self._product.copy_(scores) if self._narrow else scores
        torch.bmm(weights, self._blocks.tensor, out=self._out)
        if share is not None:
            self._out.mul_(share)

    def _beside(self, sinks: Tensor) -> Tensor:
        """Return the share of the softmax weights that keys get next to the sinks: `[N, M, 1]`."""
        pairs = sinks.view(-1, 1, self._group)
        total = self.scores.logsumexp(-1).view(-1, len(pairs), self.scores.shape[1] // self._group, self._group)
        return (total - pairs).sigmoid().view(*self.scores.shape[:2], 1)

    def _score(self) -> None:
        """Compute scores = scale x query key^T."""
        self._product.baddbmm_(self._query, self._transposed, beta=0, alpha=self._scale)
        if self._narrow:
            self.scores.copy_(self._product)
            self._product.baddbmm_(self._query, self._transposed, beta=-1, alpha=self._scale)
            self.scores.add_(self._rest.copy_(self._product))


MAX_TOKENS = 2048
"""The most gathered tokens for which `Single` computes a tile of one row."""


class TileIndex:
    """The rows and tokens of a tile: n segments of Q rows (shorter ones repeat their last row), S tokens.

    rows: `[n, Q]`, rows of the step; position: `[n, Q]`, their positions in their sequences; first_token: `[n, 1]`,
    position of the first gathered token; blocks: `[n, width]`, padded with a segment's last block.
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
        """Return the indices of the tile's blocks among the rows of a layer's keys or values, int64 [n x kv_heads x
        width] (see `KvCache.row_strides`).
        """
        of_head, of_block = strides
        heads = np.arange(kv_heads)[:, None] * of_head
        return torch.from_numpy((self.blocks[:, None, :] * of_block + heads).reshape(-1))

    def mask(self, shape: AttentionShape) -> tuple[Tensor, int] | None:
        """Return the mask of hidden tokens, 0 or -inf: `[n, 1, Q, 1, S - start]`, and start.

        All rows see the columns before start. Returns None if no token is hidden.
        """
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
        """Return ALiBi's bias of scores, up to a constant for each row: `[n, kv_heads, 1, group, S]`; None without
        ALiBi.
        """
        token = (self.first_token + np.arange(self.tokens))[:, None]
        found = alibi_bias(shape, token, self.position[:, -1:, None])
        return None if found is None else found.transpose(2, 3)


class Tile:
    """Attention of a tile's rows, over the cache of any layer of its shape.

    query and out: `[n x Q, heads, D]` in the compute dtype, the tile's rows in its own order, the same memory at every
    call.
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
        """Attend to a layer's cache, keys and values as rows `[rows, block_size x D]`; sinks float32 `[heads]`."""
        if self._before is not None:
            self._before[0].copy_(self._before[1])
        for part in self._parts:
            part(keys, values, sinks)
        if self._after is not None:
            self._after[0].copy_(self._after[1])


def _parts(
    index: TileIndex, shape: AttentionShape, cache: KvCache, query: Tensor, out: Tensor, scratch: Scratch
) -> list[FoldedAttention]:
    """Return one `FoldedAttention` for a tile of several segments. A lone segment is divided by KV heads, so that the
    scores of each part fit the CPU's cache.
    """
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
    """Attention of one row by torch's SDPA, with the interface of `Tile` and fewer calls.

    A lone decode takes half of a tile's time at a context of 200 tokens and as long at 2,000 (bfloat16, measured). The
    query heads that share a KV head are folded into rows, because `enable_gqa` is several times slower.
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
        """Attend to a layer's cache, keys and values as rows `[rows, block_size x D]`. Does not support sinks."""
        for blocks, cache in zip(self._blocks, (keys, values), strict=True):
            blocks.load(cache)
        self._out.copy_(functional.scaled_dot_product_attention(self._query, self._key, self._value, scale=self._scale))


def tile_of(
    index: TileIndex, shape: AttentionShape, cache: KvCache, query: Tensor, out: Tensor, scratch: Scratch
) -> Tile | Single:
    """Return a `Single` for one row of at most MAX_TOKENS tokens without soft cap, ALiBi and sinks, else a `Tile`."""
    plain = shape.softcap is None and shape.alibi is None and not shape.sinks
    kind = Single if index.rows.size == 1 and plain and index.tokens <= MAX_TOKENS else Tile
    return kind(index, shape, cache, query, out, scratch)
