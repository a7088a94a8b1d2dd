"""One row of one sequence: torch's SDPA, which needs fewer calls than a tile.

A decode alone takes half a tile's time at a context of 200 tokens and as long at 2,000 (bfloat16, measured); the
query heads that share a KV head are folded into rows, as `enable_gqa` is slower by a factor.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from plimsoll_runtime.execution.attention.gathered.products import GatheredBlocks
from plimsoll_runtime.execution.attention.gathered.scratch import Scratch
from plimsoll_runtime.execution.attention.gathered.tile import TileIndex
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

MAX_TOKENS = 2048


class Single:
    """Attention of one row; called like a tile."""

    def __init__(
        self,
        index: TileIndex,
        shape: AttentionShape,
        cache: KvCache,
        query: Tensor,
        out: Tensor,
        scratch: Scratch,
    ) -> None:
        rows = index.cache_rows(shape.kv_heads, cache.num_blocks)
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
        """keys and values: a layer's cache as `[kv_heads x num_blocks, block_size x D]`; there are no sinks."""
        for blocks, cache in zip(self._blocks, (keys, values), strict=True):
            blocks.load(cache)
        self._out.copy_(functional.scaled_dot_product_attention(self._query, self._key, self._value, scale=self._scale))


def suits(index: TileIndex, shape: AttentionShape) -> bool:
    """Whether this is the faster way for a tile."""
    plain = shape.softcap is None and shape.alibi is None and not shape.sinks
    return index.rows.size == 1 and plain and index.tokens <= MAX_TOKENS
