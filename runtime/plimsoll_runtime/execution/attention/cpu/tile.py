"""A tile of a step: indices and masks made once, used by every layer of the same shape."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.cpu.products import Scratch, scores, weighted
from plimsoll_runtime.execution.attention.cpu.segments import TILE_SCORES, TilePlan
from plimsoll_runtime.execution.attention.tables import Ints, StepTables
from plimsoll_runtime.models.spec import AttentionShape


class Tile:
    """n segments of Q rows each (shorter ones repeat their last row) over S = width x block_size cached tokens.

    `rows` int64 [n x Q]: which row of the step each of the tile's rows is.
    """

    def __init__(
        self, plan: TilePlan, tables: StepTables, shape: AttentionShape, num_blocks: int, block_size: int
    ) -> None:
        n, queries, width = len(plan.segments), plan.queries, plan.width
        sequence, row, own, context = np.array(
            [(s.sequence, s.row, s.queries, s.context) for s in plan.segments], dtype=np.int64
        ).T[:, :, None]
        step = np.minimum(np.arange(queries), own - 1)  # [n, Q]
        position = context - own + step
        first = np.array([s.first_token(shape.window) // block_size for s in plan.segments])[:, None]
        last = (context - 1) // block_size
        columns = np.minimum(first + np.arange(width), last)  # [n, width]
        blocks = tables.blocks[tables.first_blocks[sequence] + columns]
        heads = np.arange(shape.kv_heads) * num_blocks
        self.rows = (row + step).reshape(-1)
        self._shape = shape
        self._size = (n, queries, width * block_size)
        self._index = torch.from_numpy((blocks[:, None, :] + heads[:, None]).reshape(-1))
        self._width = width
        scores_per_head = queries * shape.heads // shape.kv_heads * self._size[2]
        self._part = len(heads) * n if n > 1 else max(1, min(len(heads), TILE_SCORES // scores_per_head))
        self._mask, self._masked_from = _mask(position, first * block_size, width * block_size, shape.window)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, out: Tensor, scratch: Scratch) -> None:
        """Attend the tile's rows.

        query and out: `[n x Q, heads, D]`; keys and values: the layer's cache as
        `[kv_heads x num_blocks, block_size x D]`.
        """
        shape, (n, queries, _) = self._shape, self._size
        group = shape.heads // shape.kv_heads
        folded = (n * shape.kv_heads, queries * group, shape.head_dim)
        if queries == 1:
            self._attend(query.view(folded), keys, values, out.view(folded), scratch)
            return
        split = (n, queries, shape.kv_heads, group, shape.head_dim)
        swapped = (n, shape.kv_heads, queries, group, shape.head_dim)
        result = scratch.take("result", folded, out.dtype)
        self._attend(query.view(split).transpose(1, 2).reshape(folded), keys, values, result, scratch)
        out.view(split).copy_(result.view(swapped).transpose(1, 2))

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, out: Tensor, scratch: Scratch) -> None:
        """query and out `[n x kv_heads, Q x group, D]`. What a part gathers and scores fits the cache."""
        for start in range(0, len(query), self._part):
            rows = slice(start, start + self._part)
            index = self._index[start * self._width : (start + self._part) * self._width]
            part = query[rows]
            weights = scores(part, self._gather(keys, index, part, scratch), self._shape.scale, scratch)
            self._adjust(weights)
            torch.softmax(weights, -1, out=weights)
            weighted(weights, self._gather(values, index, part, scratch), out[rows], scratch)

    def _gather(self, cache: Tensor, index: Tensor, query: Tensor, scratch: Scratch) -> Tensor:
        """Blocks of the cache as `[N, S, D]` in the query's dtype. Keys and values take turns in one buffer."""
        blocks = scratch.take("blocks", (len(index), cache.shape[1]), cache.dtype)
        torch.index_select(cache, 0, index, out=blocks)
        if query.dtype != cache.dtype:
            blocks = scratch.take("widened", tuple(blocks.shape), query.dtype).copy_(blocks)
        return blocks.view(len(query), self._size[2], self._shape.head_dim)

    def _adjust(self, weights: Tensor) -> None:
        """Soft cap, then mask, in place: `[N, Q x group, S]`."""
        if self._shape.softcap is not None:
            weights.div_(self._shape.softcap).tanh_().mul_(self._shape.softcap)
        if self._mask is not None:
            n, queries, tokens = self._size
            weights.view(n, -1, queries, weights.shape[1] // queries, tokens)[..., self._masked_from :].add_(self._mask)


def _mask(position: Ints, first_token: Ints, tokens: int, window: int | None) -> tuple[Tensor | None, int]:
    """What each row must not see, 0 or -inf: `[n, 1, Q, 1, S - start]`, and start: columns before it are all seen.

    position `[n, Q]` of the rows, first_token `[n, 1]` of the gathered blocks. None where everything is seen.
    """
    start = 0
    if window is None:
        start = min(tokens, int((position[:, 0] - first_token[:, 0]).min()) + 1)
    key = (first_token + np.arange(start, tokens))[:, None, :]
    hidden = key > position[:, :, None]
    if window is not None:
        hidden |= key <= position[:, :, None] - window
    if not hidden.any():
        return None, 0
    mask = torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -math.inf)
    return mask[:, None, :, None, :], start
