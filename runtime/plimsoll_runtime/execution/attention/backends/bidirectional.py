"""The attention backend of encoders: each token attends to all tokens of its prompt, and nothing is cached.

A step contains each prompt completely, so a prompt's rows attend to each other only, without padding. Prompts of equal
length share one call, because many short calls would be slow.
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
"""The most query rows in one attention call of a prompt that is longer than its sliding window."""

Bands = dict[tuple[int, int, int, int], Tensor]
"""A step's sliding-window masks, by the first four numbers that `_band` takes."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One attention call, over `count` prompts of `length` tokens each.

    `rows`: int64 [count x length], the indices of their rows in the step; None if these are consecutive from `first`
    on.
    """

    count: int
    length: int
    first: int
    rows: Tensor | None


class BidirectionalBackend:
    """Bidirectional attention in stock torch, on any device. Reads the layers' shapes from `cache.whole`."""

    name: ClassVar[str] = "whole"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities(features=("whole", "window"))

    def __init__(self, cache: KvCache) -> None:
        known = {*self.capabilities.features}
        if unknown := [shape for shape in cache.whole if not {"whole"} <= features_of(shape) <= known]:
            raise ValueError(f"the bidirectional backend does not support attention of the shape {unknown[0]}")
        self._shapes = cache.whole
        self._device = cache.device

    def begin(self, batch: AttentionBatch) -> Attention:
        """Return a function that computes the step's attention, called for each layer.

        Raises ValueError if the step lacks a part of a prompt.
        """
        check_whole(batch)
        calls = _calls(batch.query_lens, self._device)
        bands: Bands = {}

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            if key is None or value is None:
                raise ValueError(
                    f"layer {layer} reads keys and values of another layer, but bidirectional attention caches none"
                )
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
    """Raise ValueError if the step lacks a part of a prompt."""
    if list(batch.query_lens) != list(batch.context_lens):
        raise ValueError("the step lacks a part of a prompt; bidirectional attention needs whole prompts")


def _calls(lengths: Sequence[int], device: torch.device) -> list[_Call]:
    """Return one call for each distinct prompt length, with all prompts of that length."""
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
    """Select the rows of a call's B prompts of length L: [T, heads, D] -> [B, heads, L, D]."""
    if call.rows is None:
        own = values[call.first : call.first + call.count * call.length]
    else:
        own = values.index_select(0, call.rows)
    return own.view(call.count, call.length, *values.shape[1:]).transpose(1, 2)


def _of_one_length(bands: Bands, shape: AttentionShape, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend within prompts of one length: [B, heads, L, D] -> [B, heads, L, D].

    If the prompts are longer than the sliding window, at most ROWS rows are computed at a time, so that masks and
    scores stay small.
    """
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
    """Attend queries [B, heads, Q, D] to keys and values [B, kv_heads, K, D] -> [B, heads, Q, D].

    mask: bool [Q, K], True if the query sees the key; None: each query sees all keys.
    """
    grouped = shape.heads != shape.kv_heads
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=shape.scale, enable_gqa=grouped)


def _band(bands: Bands, rows: int, columns: int, ahead: int, window: int, device: torch.device) -> Tensor:
    """Return the mask of a sliding window that reaches as far forwards as backwards: bool [rows, columns], True if the
    row sees the column. Row 0 has the position of column `ahead`.
    """
    kind = rows, columns, ahead, window
    if kind not in bands:
        at = torch.arange(ahead, ahead + rows, device=device)[:, None]
        bands[kind] = (at - torch.arange(columns, device=device)).abs() < window
    return bands[kind]
