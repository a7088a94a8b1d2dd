"""Joins a row's tiles: its largest logit, the token of greedy rows, and a bound below which no filter ends.

There is one program a row, which holds all tiles and reads one tile of the logits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plimsoll_kernels.sampling.numbers.kernel import (
    DONE,
    FILTERED,
    FLOORED,
    HIGHEST,
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
from plimsoll_kernels.sampling.scratch import BINS, MOST_CANDIDATES, TILE
from plimsoll_kernels.sampling.specialise import ALIGNMENTS, SIZES

_BINS = tl.constexpr(BINS)
_TILE = tl.constexpr(TILE)
# Weights are 0 beyond 30.5 temperatures. After sixteen halvings, 31 temperatures are 1/2,000 of one.
_REACH = tl.constexpr(31.0)
_HALVINGS = tl.constexpr(16)
# More tokens than a list of candidates is useful for.
_MANY = tl.constexpr(MOST_CANDIDATES // 2)
# The share of the weight outside top-p that a bound may use, because the tiles' sums are rounded.
_CAUTION = tl.constexpr(0.999)


@triton.jit
def _bounds_by_count(most, best, warmth, wanted):
    """A logit that top-k does not end below, and one that it does not end above.

    At least `wanted` tiles have a logit not below the first. Tiles with a logit above the second have fewer than
    `wanted` tokens.
    """
    low = best - _REACH * warmth
    high = best
    below = low
    ceiling = best
    for _ in range(_HALVINGS):
        middle = 0.5 * low + 0.5 * high
        enough = tl.sum((most >= middle).to(tl.int32)) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        centre = 0.5 * below + 0.5 * ceiling
        few = tl.sum((most > centre).to(tl.int32)) * _TILE < wanted
        below = tl.where(few, below, centre)
        ceiling = tl.where(few, centre, ceiling)
    return low, ceiling


@triton.jit
def _bounds_by_weight(most, heaviest, weight, best, scale, warmth, wanted, spare):
    """A logit that top-p does not end below, and one that it hardly ever ends above.

    The tokens below the first weigh no more than the weight to leave out. For a tile whose largest logit is below it,
    that is all of its weight; for others its weight without the largest logit's, and at most the weight of its other
    tokens if all had that logit. Tiles with a logit above the second weigh less than `wanted`.
    """
    low = best - _REACH * warmth
    high = best
    below = low
    ceiling = best
    for _ in range(_HALVINGS):
        middle = 0.5 * low + 0.5 * high
        others = tl.minimum(weight - heaviest, (_TILE - 1) * whole(weight_of(middle, best, scale)))
        less = tl.sum(tl.where(most < middle, weight, tl.maximum(others, 0)))
        enough = less.to(tl.float64) <= spare
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        centre = 0.5 * below + 0.5 * ceiling
        few = tl.sum(tl.where(most > centre, weight, 0)).to(tl.float64) < wanted
        below = tl.where(few, below, centre)
        ceiling = tl.where(few, centre, ceiling)
    return low, ceiling


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ALIGNMENTS)
def _plan(
    best_out,
    token_out,
    keys,
    weights,
    kept,
    ties,
    kind_out,
    open_tiles,
    open_count,
    floor_out,
    ceiling_out,
    total_out,
    counts,
    masses,
    found,
    range_out,
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    masked,
    bits,
    stride,
    vocab,
    tiles,
    SMALLEST: tl.constexpr,
    MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Plan a row. SPAN: the power of two that holds all tiles."""
    r = tl.program_id(0)
    row = row_of(logits, r, stride, ALIGNED)
    limited, mask = mask_of(row, masked, bits, r, vocab, MASKED)
    place = r.to(tl.int64) * tiles
    tile = tl.arange(0, SPAN)
    inside = tile < tiles
    key = tl.load(keys + place + tile, mask=inside, other=LOWEST)
    top = tl.max(key)
    token = tl.min(tl.where(inside & (key == top), tile, SPAN)) * _TILE + tl.arange(0, _TILE)
    x = load_logits(row, mask, limited, token, token < vocab, MASKED)
    best = tl.where(top == HIGHEST, float("nan"), unordered(top))
    tl.store(best_out + r, best)
    tl.store(token_out + r, tl.min(tl.where((token < vocab) & (ordered(x) == top), token, vocab)).to(tl.int64))

    kind = DONE
    several = tl.zeros((), tl.int32)
    warmth = tl.load(temperature + r)
    if (tl.abs(best) < float("inf")) & (warmth >= SMALLEST):
        scale = 1.0 / warmth
        most = tl.where(inside, unordered(key), float("-inf"))
        heaviest = weight_of(most, best, scale)
        weight = whole(tl.load(weights + place + tile, mask=inside, other=0.0) * heaviest)
        total = tl.sum(weight)
        wanted = tl.load(top_k + r)
        share = tl.load(top_p + r)
        least = tl.load(min_p + r)
        floor = tl.full((), float("-inf"), tl.float32)
        ceiling = best
        kind = WHOLE
        opened = inside & (most > best)
        if (wanted > 0) & (wanted < vocab):
            kind = FILTERED
            floor, ceiling = _bounds_by_count(most, best, warmth, wanted)
            # Top-p may end above the ceiling, among all tokens there.
            ceiling = tl.where((share < 1.0) & (wanted > _MANY), best, ceiling)
            opened = inside & (most >= floor)
        elif share < 1.0:
            kind = FILTERED
            reach = share.to(tl.float64) * total.to(tl.float64)
            spare = (total.to(tl.float64) - reach) * _CAUTION
            floor, ceiling = _bounds_by_weight(most, whole(heaviest), weight, best, scale, warmth, reach, spare)
            opened = inside & (most >= floor)
        elif least > 0.0:
            kind = FLOORED
            opened = inside & (heaviest >= least)
        tl.store(kept + place + tile, tl.where(kind == WHOLE, weight, 0), mask=inside)
        tl.store(ties + place + tile, tl.zeros((SPAN,), tl.int32), mask=inside)
        opening = opened.to(tl.int32)
        tl.store(open_tiles + place + tl.cumsum(opening, 0) - 1, tile, mask=opened)
        several = tl.sum(opening)
        tl.store(floor_out + r, floor)
        tl.store(ceiling_out + r, ceiling)
        tl.store(total_out + r, total)
        tl.store(found + r, 0)
        tl.store(range_out + r * 2, HIGHEST)
        tl.store(range_out + r * 2 + 1, LOWEST)
        if kind == FILTERED:
            b = r.to(tl.int64) * _BINS + tl.arange(0, _BINS)
            tl.store(counts + b, tl.zeros((_BINS,), tl.int32))
            tl.store(masses + b, tl.zeros((_BINS,), tl.int64))
    tl.store(kind_out + r, kind)
    tl.store(open_count + r, several)
