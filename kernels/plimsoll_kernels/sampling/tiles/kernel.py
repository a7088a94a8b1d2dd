"""The reading of all logits: every tile's largest logit and weight."""

from __future__ import annotations

import triton
import triton.language as tl

from plimsoll_kernels.sampling.numbers.kernel import (
    HIGHEST,
    load_logits,
    mask_of,
    ordered,
    row_of,
    tokens_of,
    unordered,
)
from plimsoll_kernels.sampling.scratch import TILE
from plimsoll_kernels.sampling.specialise import ALIGNMENTS, SIZES

_TILE = tl.constexpr(TILE)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ALIGNMENTS)
def _tiles(
    keys,
    weights,
    logits,
    temperature,
    masked,
    bits,
    stride,
    vocab,
    tiles,
    splits,
    loops,
    SMALLEST: tl.constexpr,
    MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILES: tl.constexpr,
):
    """Store the largest logit and the weight of `loops` x TILES tiles of one row."""
    r = tl.program_id(0) // splits
    row = row_of(logits, r, stride, ALIGNED)
    limited, mask = mask_of(row, masked, bits, r, vocab, MASKED)
    warmth = tl.load(temperature + r)
    scale = tl.where(warmth >= SMALLEST, 1.0 / tl.maximum(warmth, SMALLEST), 1.0)
    place = r.to(tl.int64) * tiles
    first = (tl.program_id(0) % splits) * loops * TILES
    for i in range(loops):
        tile = first + i * TILES + tl.arange(0, TILES)
        token = tokens_of(tile)
        x = load_logits(row, mask, limited, token, token < vocab, MASKED)
        key = tl.max(ordered(x), 1)
        most = unordered(key)
        finite = (key != HIGHEST) & (tl.abs(most) < float("inf"))
        distance = tl.where(finite[:, None], x, float("-inf")) - tl.where(finite, most, 0.0)[:, None]
        weight = tl.sum(tl.exp(distance * scale), 1)
        tl.store(keys + place + tile, key, mask=tile < tiles)
        tl.store(weights + place + tile, weight, mask=tile < tiles)
