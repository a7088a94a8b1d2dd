"""The backend of torch's own scaled_dot_product_attention, on any device: over keys and values gathered from the cache.

All decodes are one call, padded to the longest of them; each chunk of a prompt is a call of its own. `flex_attention`
would avoid the gather, but must be compiled at each start, and was slower than this on a CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from plimsoll_runtime.execution.attention.cache_backend import CallsBackend
from plimsoll_runtime.execution.attention.capabilities import LATENT, Capabilities
from plimsoll_runtime.execution.attention.step_tables import StepTables, alibi_bias, first_seen
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import AttentionShape

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Call:
    """S sequences of Q rows each; Q or S is 1.

    rows: int64 [S x Q]; blocks: int64 [S, W], the blocks that are gathered; seen: bool [S, Q, W x block], the cells
    that each row sees; foreign: bool [S, W x block], cells outside the sequence, with arbitrary content. bias: float32
    [S, kv_heads, group, Q or 1, W x block], ALiBi's bias of scores, None without ALiBi.
    """

    rows: Tensor
    blocks: Tensor
    seen: Tensor
    foreign: Tensor
    bias: Tensor | None


class SdpaBackend(CallsBackend):
    """Attention by torch's SDPA, over copies of the keys and values that each call sees. Does not support soft caps,
    which SDPA lacks.
    """

    name: ClassVar[str] = "sdpa"
    capabilities: ClassVar[Capabilities] = Capabilities(
        features=("window", "chunk", "alibi", "rounded_alibi", "sinks", *LATENT)
    )

    def calls(self, tables: StepTables, shape: AttentionShape) -> list[_Call]:
        decodes = np.flatnonzero(tables.query_lens == 1)
        chunks = np.flatnonzero(tables.query_lens > 1)
        groups = [decodes[None].T, *(chunks[i : i + 1, None] for i in range(len(chunks)))]
        return [self._call(tables, group[:, 0], shape) for group in groups if group.size]

    def _call(self, tables: StepTables, chosen: Ints, shape: AttentionShape) -> _Call:
        """Return one call for the sequences `chosen`, which have equally many rows. It gathers the blocks of each from
        the first block that a row sees.
        """
        size, device = self._cache.block_size, self._cache.device
        count, context = int(tables.query_lens[chosen[0]]), tables.context_lens[chosen]
        first = first_seen(shape, context - count) // size
        needed = tables.num_blocks[chosen] - first
        column = np.arange(int(needed.max()))
        flat = (tables.first_blocks[chosen] + first)[:, None] + np.minimum(column, needed[:, None] - 1)
        position = (context - count)[:, None] + np.arange(count)  # [S, Q]
        token = first[:, None] * size + np.arange(column.size * size)  # [S, W x block]
        seen = token[:, None] <= position[:, :, None]
        seen &= token[:, None] >= first_seen(shape, position)[:, :, None]
        rows = tables.first_rows[chosen][:, None] + np.arange(count)
        bias = alibi_bias(shape, token[:, None], position[:, :, None])
        return _Call(
            to_device(rows.ravel(), device),
            to_device(tables.blocks[flat].astype(np.int64), device),
            to_device(seen, device),
            to_device(token >= context[:, None], device),
            None if bias is None else bias.to(device),
        )

    def attend(
        self, call: _Call, query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape, sinks: Tensor | None
    ) -> Tensor:
        """Attend the rows of one call: query [S x Q, heads, D] -> [S x Q, heads, D]."""
        sequences, count, _ = call.seen.shape
        group = shape.heads // shape.kv_heads
        key = _gathered(keys, call)
        value = key if shape.latent else _gathered(values, call)
        # A group's heads take the place of rows: SDPA's own way of sharing KV heads copies them for each head.
        folded = query.view(sequences, count, shape.kv_heads, group, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = call.seen[:, None].repeat(1, 1, group, 1)  # [S, 1, group x Q, W x block]
        if call.bias is not None:
            bias = call.bias.expand(-1, -1, -1, count, -1).flatten(2, 3)
            mask = bias.masked_fill(~mask, -math.inf)
        if sinks is not None:
            key, value = (functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
            hidden = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)
            sink = sinks.view(1, shape.kv_heads, group, 1, 1).expand(sequences, -1, -1, count, 1).flatten(2, 3)
            mask = torch.cat([hidden.expand(-1, shape.kv_heads, -1, -1), sink], dim=-1)
        if mask.dtype is not torch.bool:
            folded, key, value = (x.float() for x in (folded, key, value))
        out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=shape.scale)
        heads = out.to(query.dtype).view(sequences, shape.kv_heads, group, count, -1)
        return heads.permute(0, 3, 1, 2, 4).reshape(query.shape)


def _gathered(cache: Tensor, call: _Call) -> Tensor:
    """Gather [kv_heads, blocks, block, D] -> [S, kv_heads, W x block, D], with zeros in foreign cells (they may be
    NaN).
    """
    tokens = cache[:, call.blocks].flatten(2, 3).transpose(0, 1)
    return tokens.masked_fill_(call.foreign[:, None, :, None], 0.0)
