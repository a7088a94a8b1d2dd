"""Constants of all kernels over a paged cache: a launch is compiled for each combination of their values."""

from __future__ import annotations

from typing import TypedDict

import triton
from torch import Tensor

from plimsoll_kernels.paged_attention.terms import ScoreTerms


class Constants(TypedDict):
    """Query heads, the number of them that share a KV head, elements of a head and the power of two that holds them;
    tokens of a block; and the properties of a layer's scores, 0 for no window and no chunk.
    """

    HEADS: int
    GROUP: int
    SIZE: int
    SIZE_PADDED: int
    BLOCK_SIZE: int
    WINDOW: int
    CHUNK: int
    SOFTCAP: bool
    SLOPES: bool


def constants(query: Tensor, key_cache: Tensor, terms: ScoreTerms) -> Constants:
    """Return the constants of queries `[T, heads, D]` over keys `[kv_heads, blocks, block_size, D]`."""
    _, heads, size = query.shape
    return Constants(
        HEADS=heads,
        GROUP=heads // key_cache.shape[0],
        SIZE=size,
        SIZE_PADDED=max(16, triton.next_power_of_2(size)),
        BLOCK_SIZE=key_cache.shape[2],
        WINDOW=terms.window or 0,
        CHUNK=terms.chunk or 0,
        SOFTCAP=terms.softcap is not None,
        SLOPES=terms.slopes is not None,
    )
