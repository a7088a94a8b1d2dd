"""The backend of the FlashAttention that is part of torch: its `varlen_attn`, over gathered keys and values.

Follows torch 2.11 and later. Its kernel only reads pages of 256 tokens, so keys and values are copied into contiguous
memory, those of some sequences at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plimsoll_runtime.execution.attention.cache_backend import CallsBackend
from plimsoll_runtime.execution.attention.capabilities import ANY, HALF, Capabilities, Target, multiples
from plimsoll_runtime.execution.attention.step_tables import StepTables, first_seen
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import AttentionShape

TOKENS = 65_536
"""The most tokens that are gathered at a time, unless a single sequence has more."""
Ints = NDArray[np.int64]


class _Call(NamedTuple):
    """One call, over S consecutive sequences of the step.

    blocks, offsets: int64 [K], block and offset of each gathered token. query_starts, key_starts: int32 [S + 1], the
    first row and the first gathered token of each sequence within the call, then their numbers. most_rows, most_tokens:
    the most of one sequence.
    """

    rows: slice
    blocks: Tensor
    offsets: Tensor
    query_starts: Tensor
    key_starts: Tensor
    most_rows: int
    most_tokens: int


def _flash_attention_missing(target: Target) -> str | None:
    return None if torch.backends.cuda.is_flash_attention_available() else "needs a PyTorch built with FlashAttention"


class TorchFlashBackend(CallsBackend):
    """FlashAttention of torch itself, on NVIDIA GPUs."""

    name: ClassVar[str] = "torch-flash"
    capabilities: ClassVar[Capabilities] = Capabilities(
        devices=("cuda",),
        dtypes=HALF,
        features=("window",),
        head_dims=multiples(8, 256),
        compute_capability=ANY[8:],
        checks=(_flash_attention_missing,),
    )

    def __init__(self, cache: KvCache) -> None:
        from torch.nn.attention import varlen

        super().__init__(cache)
        self._attend: Any = varlen.varlen_attn
        # Before torch 2.12, `varlen_attn` accepted more query heads than KV heads without an argument for it.
        self._says_groups = "enable_gqa" in inspect.signature(self._attend).parameters

    def calls(self, tables: StepTables, shape: AttentionShape) -> Iterator[_Call]:
        """Split the step into calls that gather at most TOKENS tokens each, or those of one sequence if it has more.
        Tokens that no row sees are not gathered.
        """
        starts = first_seen(shape, tables.context_lens - tables.query_lens)
        tokens = tables.context_lens - starts
        first = 0
        for end in range(1, len(tokens) + 1):
            if end == len(tokens) or tokens[first : end + 1].sum() > TOKENS:
                yield _call(tables, np.arange(first, end), starts, self._cache)
                first = end

    def attend(
        self, call: _Call, query: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape, sinks: Tensor | None
    ) -> Tensor:
        """Attend the rows of one call: query [T, heads, D] -> [T, heads, D]."""
        # [kv_heads, blocks, block, D] -> [K, kv_heads, D].
        key, value = (cache[:, call.blocks, call.offsets].transpose(0, 1) for cache in (keys, values))
        grouped = {"enable_gqa": shape.heads != shape.kv_heads} if self._says_groups else {}
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out: Tensor = self._attend(
                query.contiguous(),
                key,
                value,
                call.query_starts,
                call.key_starts,
                call.most_rows,
                call.most_tokens,
                scale=shape.scale,
                # Tokens to the left of the row's own, and to its right; `shape.window` counts the row's own too.
                window_size=(-1 if shape.window is None else shape.window - 1, 0),
                **grouped,
            )
        return out


def _call(tables: StepTables, chosen: Ints, starts: Ints, cache: KvCache) -> _Call:
    """Return the call of the sequences `chosen`, whose tokens are read from the positions `starts` on."""
    rows, tokens = tables.query_lens[chosen], (tables.context_lens - starts)[chosen]
    position = np.concatenate([np.arange(starts[i], tables.context_lens[i]) for i in chosen])
    at = position // cache.block_size + np.repeat(tables.first_blocks[chosen], tokens)
    # Each copy to the device has a fixed cost, so arrays of one dtype are copied together.
    where = to_device(np.stack([tables.blocks[at].astype(np.int64), position % cache.block_size]), cache.device)
    ends = np.stack([np.append(0, np.cumsum(rows)), np.append(0, np.cumsum(tokens))]).astype(np.int32)
    there = to_device(ends, cache.device)
    first = int(tables.first_rows[chosen[0]])
    return _Call(
        slice(first, first + int(rows.sum())),
        where[0],
        where[1],
        there[0],
        there[1],
        int(rows.max()),
        int(tokens.max()),
    )
