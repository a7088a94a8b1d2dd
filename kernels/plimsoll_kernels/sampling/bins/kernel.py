"""Tokens and weight by bins of distance from the largest logit, and the bins in which the filters end."""

from __future__ import annotations

import triton
import triton.language as tl

from plimsoll_kernels.sampling.numbers.kernel import (
    FILTERED,
    FLOORED,
    bin_of,
    load_logits,
    mask_of,
    row_of,
    tokens_of,
    weight_of,
    whole,
)
from plimsoll_kernels.sampling.scratch import BINS, TILE
from plimsoll_kernels.sampling.specialise import ALIGNMENTS, SIZES

_BINS = tl.constexpr(BINS)
_TILE = tl.constexpr(TILE)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ALIGNMENTS)
def _count(
    counts,
    masses,
    best_out,
    kind_in,
    floor_in,
    ceiling_in,
    open_tiles,
    open_count,
    logits,
    temperature,
    masked,
    bits,
    stride,
    vocab,
    tiles,
    splits,
    MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILES: tl.constexpr,
):
    """Add the tokens of the open tiles to their bins, in any order."""
    r = tl.program_id(0) // splits
    if tl.load(kind_in + r) != FILTERED:
        return
    row = row_of(logits, r, stride, ALIGNED)
    limited, mask = mask_of(row, masked, bits, r, vocab, MASKED)
    best = tl.load(best_out + r)
    scale = 1.0 / tl.load(temperature + r)
    several = tl.load(open_count + r)
    floor = tl.load(floor_in + r)
    ceiling = tl.load(ceiling_in + r)
    bins = r.to(tl.int64) * _BINS
    for step in range(tl.program_id(0) % splits, tl.cdiv(several, TILES), splits):
        place = step * TILES + tl.arange(0, TILES)
        tile = tl.load(open_tiles + r.to(tl.int64) * tiles + place, mask=place < several, other=0)
        token = tokens_of(tile)
        x = load_logits(row, mask, limited, token, (place < several)[:, None] & (token < vocab), MASKED)
        weight = whole(weight_of(x, best, scale))
        live = (weight > 0) & (x >= floor)
        b = bin_of(x, ceiling, scale)
        nearest = tl.min(tl.where(live, b, _BINS))
        if nearest == tl.max(tl.where(live, b, -1)):
            # Equal logits would all wait for one address, so they are added up first.
            tl.atomic_add(counts + bins + nearest, tl.sum(tl.sum(live.to(tl.int32), 1)), sem="relaxed")
            tl.atomic_add(masses + bins + nearest, tl.sum(tl.sum(tl.where(live, weight, 0), 1)), sem="relaxed")
        elif nearest < _BINS:
            tl.atomic_add(counts + bins + b, tl.full((TILES, _TILE), 1, tl.int32), mask=live, sem="relaxed")
            tl.atomic_add(masses + bins + b, weight, mask=live, sem="relaxed")


@triton.jit
def _at(values, b, wanted):
    """The value of one bin; 0 for -1."""
    return tl.sum(tl.where(b == wanted, values, 0))


@triton.jit
def _first(b, count, reached, last):
    """The first bin with tokens at which `reached` holds, at most the last."""
    return tl.minimum(tl.min(tl.where(reached & (count > 0), b, _BINS)), last)


@triton.jit(do_not_specialize_on_alignment=ALIGNMENTS)
def _ends(ends, above, counts, masses, kind_in, total_in, top_k, top_p, vocab):
    """Find the bins in which a row's filters end; one program a row.

    The end of top-p depends on the weight that top-k keeps, which is known to within its bin; hence a first and a last
    bin.
    """
    r = tl.program_id(0)
    kind = tl.load(kind_in + r)
    ends += r * 4
    above += r * 3
    if kind == FLOORED:
        tl.store(ends, _BINS)
        tl.store(ends + 1, -1)
        tl.store(ends + 2, -1)
    if kind == FILTERED:
        b = tl.arange(0, _BINS)
        place = r.to(tl.int64) * _BINS + b
        count = tl.cumsum(tl.load(counts + place), 0)
        mass = tl.cumsum(tl.load(masses + place), 0)
        most = tl.max(count)
        last = tl.min(tl.where(count == most, b, _BINS))
        wanted = tl.load(top_k + r)
        share = tl.load(top_p + r).to(tl.float64)
        by_count = (wanted > 0) & (wanted < vocab) & (wanted < most)
        limited = (wanted > 0) & (wanted < vocab)
        counted = tl.where(by_count, _first(b, count, count >= wanted, last), -1)
        # If top-k keeps all tokens that may be drawn, all of them have been counted.
        fewest = tl.where(
            by_count, _at(mass, b, counted - 1), tl.where(limited, _at(mass, b, last), tl.load(total_in + r))
        )
        greatest = tl.where(by_count, _at(mass, b, counted), fewest)
        last = tl.where(by_count, counted, last)
        if share < 1.0:
            begin = _first(b, count, mass.to(tl.float64) >= share * fewest.to(tl.float64), last)
            end = _first(b, count, mass.to(tl.float64) >= share * greatest.to(tl.float64), last)
        else:
            begin = tl.where(by_count, counted, _BINS)
            end = counted
        tl.store(ends, begin)
        tl.store(ends + 1, end)
        tl.store(ends + 2, counted)
        tl.store(ends + 3, _at(count, b, counted - 1))
        tl.store(above, _at(mass, b, begin - 1))
        tl.store(above + 1, _at(mass, b, counted - 1))
        tl.store(above + 2, tl.where(share < 1.0, fewest, -1))
