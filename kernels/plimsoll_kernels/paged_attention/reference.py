"""The definition of paged attention: plain torch, one sequence at a time. Tests and benchmarks compare with it."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch


def paged_attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    slopes: Tensor | None = None,
    coarse: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend each row to its sequence's cached tokens up to its own position.

    query: `[T, heads, D]`, the rows of the batch's sequences in order.
    key_cache, value_cache: `[kv_heads, num_blocks, block_size, D]`; heads / kv_heads queries share a KV head.
    window: tokens that a row sees, itself included; softcap: scores become softcap x tanh(score / softcap).
    chunk: a row sees the tokens from the last multiple of it on.
    slopes: float32 `[heads]`; slope x (token's position - row's) is added to scores (ALiBi, Press et al., 2022). If
      `coarse`, scale x slope x token's position is added, where slope x position is computed in bfloat16.
    sinks: float32 `[heads]`; for each head, the score of a key whose value is zero (Xiao et al., 2024).

    Computes in float32 (float64 for float64) and returns `[T, heads, D]` in the query's dtype.
    """
    outputs = []
    bounds = itertools.pairwise(batch.query_starts.tolist())
    for (start, end), context, table in zip(
        bounds, batch.context_lens.tolist(), batch.block_tables.tolist(), strict=True
    ):
        blocks = torch.tensor(table[: -(-context // key_cache.shape[2])], device=query.device)
        key = key_cache[:, blocks].flatten(1, 2)[:, :context]
        value = value_cache[:, blocks].flatten(1, 2)[:, :context]
        rows = query[start:end]
        outputs.append(
            attention_reference(
                rows,
                key,
                value,
                scale=scale,
                window=window,
                softcap=softcap,
                chunk=chunk,
                slopes=slopes,
                coarse=coarse,
                sinks=sinks,
            )
        )
    return torch.cat(outputs)


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    slopes: Tensor | None = None,
    coarse: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend one sequence: query `[Q, heads, D]`, the last Q tokens of key and value `[kv_heads, S, D]` -> `[Q, heads,
    D]`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    queries, tokens, group = query.shape[0], key.shape[1], query.shape[1] // key.shape[0]
    key, value = (x.to(wide).repeat_interleave(group, 0) for x in (key, value))
    scores = query.to(wide).transpose(0, 1) @ key.transpose(1, 2) * scale  # [heads, Q, S]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(tokens - queries, tokens, device=query.device)[:, None]
    token = torch.arange(tokens, device=query.device)
    if slopes is not None:
        slope = slopes.to(query.device, wide)[:, None, None]
        coarsely = scale * (slope.bfloat16() * token).to(wide)
        scores = scores + (coarsely if coarse else slope * (token - position))
    hidden = token > position
    if window is not None:
        hidden = hidden | (token <= position - window)
    if chunk is not None:
        hidden = hidden | (token < position // chunk * chunk)
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        sink = sinks.to(query.device, wide)[:, None, None].expand(-1, queries, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, -1)[..., :tokens]
    return (weights @ value).transpose(0, 1).to(query.dtype)


def write_cache_reference(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, cells: Tensor) -> None:
    """Write row t of key and value `[T, kv_heads, D]` to cell `cells[t]` (block x block_size + offset)."""
    block_size = key_cache.shape[2]
    blocks, offsets = cells // block_size, cells % block_size
    key_cache[:, blocks, offsets] = key.transpose(0, 1)
    value_cache[:, blocks, offsets] = value.transpose(0, 1)
