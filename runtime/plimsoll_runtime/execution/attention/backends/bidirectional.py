"""The backend of encoders: each token sees its prompt from both ends, and nothing is kept of it.

A prompt is in one step as a whole, so its rows attend to each other and to nothing else; no row is padded. On a CPU the
prompts of one length are one call, for many short ones would be many small calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.capabilities import Capabilities, features_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.spec.attention import AttentionShape

ROWS = 512
"""Of a long prompt that are computed at a time where they see a window of it."""

Bands = dict[tuple[int, int, int, int], Tensor]
"""A step's masks, by the rows, columns, place and window that `_band` made them for."""


@dataclass(frozen=True, slots=True)
class _Call:
    """The prompts of one length: B of them, of L rows each. `rows` int64 [B x L]; None: those from `first` on."""

    count: int
    length: int
    first: int
    rows: Tensor | None


class BidirectionalBackend:
    """See AttentionBackend. The shapes are those of the cache's `whole`, layer by layer."""

    name: ClassVar[str] = "whole"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities(features=("whole", "window"))

    def __init__(self, cache: KvCache) -> None:
        known = {*self.capabilities.features}
        if unknown := [shape for shape in cache.whole if not {"whole"} <= features_of(shape) <= known]:
            raise ValueError(f"attention of the shape {unknown[0]} is not computed over whole prompts")
        self._shapes = cache.whole
        self._device = cache.device

    def begin(self, batch: AttentionBatch) -> Attention:
        """See AttentionBackend. Raises ValueError where a prompt is not in the step as a whole."""
        check_whole(batch)
        calls = _calls(batch.query_lens, self._device)
        bands: Bands = {}

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            if key is None or value is None:
                raise ValueError(f"layer {layer} reads what another has kept, and nothing is kept here")
            shape = self._shapes[layer]
            out = torch.empty_like(query)
            for call in calls:
                heads = [_of_call(call, each) for each in (query, key, value)]
                attended = _of_one_length(bands, shape, *heads).transpose(1, 2).flatten(0, 1)
                if call.rows is None:
                    out[call.first : call.first + call.count * call.length] = attended
                else:
                    out.index_copy_(0, call.rows, attended)
            return out

        return attention


def check_whole(batch: AttentionBatch) -> None:
    """Raises ValueError where a prompt is not in the step as a whole."""
    if list(batch.query_lens) != list(batch.context_lens):
        raise ValueError("a prompt is not in the step as a whole, and its layers see it from both ends")


def _calls(lengths: Sequence[int], device: torch.device) -> list[_Call]:
    """One for each length that there is."""
    places: dict[int, list[int]] = {}
    for first, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        places.setdefault(length, []).append(first)
    calls = []
    for length, firsts in places.items():
        together = firsts[-1] - firsts[0] == length * (len(firsts) - 1)
        rows = None if together else (torch.tensor(firsts)[:, None] + torch.arange(length)).flatten().to(device)
        calls.append(_Call(len(firsts), length, firsts[0], rows))
    return calls


def _of_call(call: _Call, values: Tensor) -> Tensor:
    """[T, heads, D] -> [B, heads, L, D]."""
    if call.rows is None:
        own = values[call.first : call.first + call.count * call.length]
    else:
        own = values.index_select(0, call.rows)
    return own.view(call.count, call.length, *values.shape[1:]).transpose(1, 2)


def _of_one_length(bands: Bands, shape: AttentionShape, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, heads, L, D] -> the same. Within a window some rows at a time, so that masks and scores stay small."""
    length, window = query.shape[2], shape.window
    if window is None or length <= window:
        return _attended(shape, query, key, value)
    parts = []
    for start in range(0, length, ROWS):
        end = min(start + ROWS, length)
        first, last = max(0, start - window + 1), min(length, end + window - 1)
        mask = _band(bands, end - start, last - first, start - first, window, query.device)
        parts.append(_attended(shape, query[:, :, start:end], key[:, :, first:last], value[:, :, first:last], mask))
    return torch.cat(parts, dim=2)


def _attended(shape: AttentionShape, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Queries [B, heads, Q, D] over keys and values [B, kv_heads, K, D] -> [B, heads, Q, D]; mask bool [Q, K]."""
    grouped = shape.heads != shape.kv_heads
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=shape.scale, enable_gqa=grouped)


def _band(bands: Bands, rows: int, columns: int, ahead: int, window: int, device: torch.device) -> Tensor:
    """Which columns each row sees, bool [rows, columns]: the first row stands at the column `ahead`."""
    kind = rows, columns, ahead, window
    if kind not in bands:
        at = torch.arange(ahead, ahead + rows, device=device)[:, None]
        bands[kind] = (at - torch.arange(columns, device=device)).abs() < window
    return bands[kind]
