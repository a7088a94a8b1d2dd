"""The draw: the tile in which the uniform number falls, and the token in that tile."""

from __future__ import annotations

import triton
import triton.language as tl

from plimsoll_kernels.sampling.numbers.kernel import (
    DONE,
    FILTERED,
    LOWEST,
    WHOLE,
    load_logits,
    mask_of,
    ordered,
    row_of,
    unordered,
    weight_of,
    whole,
)
from plimsoll_kernels.sampling.scratch import TILE
from plimsoll_kernels.sampling.specialise import ALIGNMENTS, SIZES

_TILE = tl.constexpr(TILE)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ALIGNMENTS)
def _draw(
    token_out,
    kept,
    ties_in,
    cut_in,
    best_out,
    kind_in,
    floor_in,
    logits,
    temperature,
    min_p,
    uniform,
    masked,
    bits,
    stride,
    vocab,
    tiles,
    MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Draw a row's token; one program a row, which reads one tile of the logits."""
    r = tl.program_id(0)
    kind = tl.load(kind_in + r)
    if kind == DONE:
        return
    row = row_of(logits, r, stride, ALIGNED)
    limited, mask = mask_of(row, masked, bits, r, vocab, MASKED)
    best = tl.load(best_out + r)
    scale = 1.0 / tl.load(temperature + r)
    floor = tl.load(floor_in + r)
    least = tl.where(kind == WHOLE, 0.0, tl.load(min_p + r))
    cut = tl.full((), LOWEST, tl.int32)
    ties = tl.zeros((), tl.int32)
    if kind == FILTERED:
        cut = tl.load(cut_in + r * 2)
        ties = tl.load(cut_in + r * 2 + 1)
    edge = weight_of(tl.where(cut > LOWEST, unordered(cut), best), best, scale)
    one = tl.where(edge >= least, whole(edge), 0)

    place = r.to(tl.int64) * tiles
    at = tl.arange(0, SPAN)
    equal = tl.load(ties_in + place + at, mask=at < tiles, other=0)
    seen = tl.cumsum(equal, 0) - equal
    stay = tl.minimum(equal, tl.maximum(ties - seen, 0))
    mass = tl.load(kept + place + at, mask=at < tiles, other=0) + stay * one
    sums = tl.cumsum(mass, 0)
    total = tl.max(sums)
    target = tl.minimum((tl.load(uniform + r) * total.to(tl.float64)).to(tl.int64), total - 1)
    tile = tl.minimum(tl.min(tl.where(sums > target, at, SPAN)), tiles - 1)
    before = tl.sum(tl.where(at == tile, sums - mass, 0))
    rank = tl.sum(tl.where(at == tile, seen, 0))

    token = tile * _TILE + tl.arange(0, _TILE)
    x = load_logits(row, mask, limited, token, token < vocab, MASKED)
    key = ordered(x)
    weight = weight_of(x, best, scale)
    same = (token < vocab) & (key == cut)
    rank += tl.cumsum(same.to(tl.int32), 0)
    stays = (key > cut) | (same & (rank <= ties))
    stays = stays & (x >= floor) & (weight >= least)
    own = tl.where(stays, whole(weight), 0)
    passed = (own > 0) & (before + tl.cumsum(own, 0) > target)
    first = tl.min(tl.where(passed, token, vocab))
    # A tile's weight is rounded differently from its tokens' weights: the last token gets the difference.
    last = tl.max(tl.where(own > 0, token, tile * _TILE))
    tl.store(token_out + r, tl.minimum(first, last).to(tl.int64))
