"""The tokens of the bins in which the filters end, and the logits at which they end."""

from __future__ import annotations

import triton
import triton.language as tl

from plimsoll_kernels.sampling.numbers.kernel import (
    FILTERED,
    HIGHEST,
    LOWEST,
    bin_of,
    load_logits,
    mask_of,
    ordered,
    row_of,
    tokens_of,
    unordered,
    weight_of,
    whole,
)
from plimsoll_kernels.sampling.scratch import BINS, TILE
from plimsoll_kernels.sampling.specialise import ALIGNMENTS, SIZES

_BINS = tl.constexpr(BINS)
_TILE = tl.constexpr(TILE)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ALIGNMENTS)
def _collect(
    kept,
    ties_out,
    found,
    range_out,
    candidates,
    candidate_keys,
    ends,
    best_out,
    floor_in,
    ceiling_in,
    open_tiles,
    open_count,
    logits,
    temperature,
    min_p,
    masked,
    bits,
    stride,
    vocab,
    tiles,
    splits,
    MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILES: tl.constexpr,
    MOST: tl.constexpr,
):
    """Add up the weight above the bins in which filters end, by tiles, and list the tokens in these bins, in any
    order.
    """
    r = tl.program_id(0) // splits
    several = tl.load(open_count + r)
    if several == 0:
        return
    row = row_of(logits, r, stride, ALIGNED)
    limited, mask = mask_of(row, masked, bits, r, vocab, MASKED)
    best = tl.load(best_out + r)
    scale = 1.0 / tl.load(temperature + r)
    floor = tl.load(floor_in + r)
    ceiling = tl.load(ceiling_in + r)
    least = tl.load(min_p + r)
    begin = tl.load(ends + r * 4)
    end = tl.load(ends + r * 4 + 1)
    counted = tl.load(ends + r * 4 + 2)
    listed = r.to(tl.int64) * MOST
    place = r.to(tl.int64) * tiles
    for step in range(tl.program_id(0) % splits, tl.cdiv(several, TILES), splits):
        entry = step * TILES + tl.arange(0, TILES)
        opened = entry < several
        tile = tl.load(open_tiles + place + entry, mask=opened, other=0)
        token = tokens_of(tile)
        x = load_logits(row, mask, limited, token, opened[:, None] & (token < vocab), MASKED)
        weight = weight_of(x, best, scale)
        live = (whole(weight) > 0) & (x >= floor)
        b = bin_of(x, ceiling, scale)
        stays = live & (b < begin) & (weight >= least)
        tl.store(kept + place + tile, tl.sum(tl.where(stays, whole(weight), 0), 1), mask=opened)
        within = live & (((b >= begin) & (b <= end)) | (b == counted))
        member = within.to(tl.int32)
        each = tl.sum(member, 1)
        tl.store(ties_out + place + tile, each, mask=opened)
        more = tl.sum(each)
        if more > 0:
            before = tl.atomic_add(found + r, more, sem="relaxed")
            slot = before + (tl.cumsum(each, 0) - each)[:, None] + tl.cumsum(member, 1) - member
            key = ordered(x)
            tl.store(candidates + listed + slot, token, mask=within & (slot < MOST))
            tl.store(candidate_keys + listed + slot, key, mask=within & (slot < MOST))
            searched = within & (b >= begin) & (b <= end)
            tl.atomic_min(range_out + r * 2, tl.min(tl.where(searched, key, HIGHEST)), sem="relaxed")
            tl.atomic_max(range_out + r * 2 + 1, tl.max(tl.where(searched, key, LOWEST)), sem="relaxed")


@triton.jit
def _candidates(of, start, MASKED: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """A block of the list, or of the row if the list is too short: token, key, bin, weight, and whether it counts.

    of: the tuple of a row that `_cut` makes.
    """
    row, mask, limited, tokens, keys, found, vocab, best, scale, floor, ceiling = of
    place = start + tl.arange(0, BLOCK)
    listed = place < tl.where(found > MOST, 0, found)
    unlisted = place < tl.where(found > MOST, vocab, 0)
    token = tl.where(unlisted, place, tl.load(tokens + place, mask=listed, other=0))
    key = tl.load(keys + place, mask=listed, other=0)
    key = tl.where(unlisted, ordered(load_logits(row, mask, limited, place, unlisted, MASKED)), key)
    x = tl.where(listed | unlisted, unordered(key), float("-inf"))
    weight = weight_of(x, best, scale)
    return token, key, bin_of(x, ceiling, scale), weight, (whole(weight) > 0) & (x >= floor)


@triton.jit
def _measure(of, begin, end, middle, MASKED: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """(number of tokens of the bins from `begin` to `end` whose key is at least `middle`, their weight, their least
    key, the largest key of the bins' other tokens).
    """
    _row, _mask, _limited, _tokens, _keys, found, vocab, _best, _scale, _floor, _ceiling = of
    count = tl.zeros((), tl.int32)
    mass = tl.zeros((), tl.int64)
    least = tl.full((), HIGHEST, tl.int32)
    most = tl.full((), LOWEST, tl.int32)
    for start in range(0, tl.where(found > MOST, vocab, found), BLOCK):
        _token, key, b, weight, live = _candidates(of, start, MASKED, MOST, BLOCK)
        live = live & (b >= begin) & (b <= end)
        chosen = live & (key >= middle)
        count += tl.sum(chosen.to(tl.int32))
        mass += tl.sum(tl.where(chosen, whole(weight), 0))
        least = tl.minimum(least, tl.min(tl.where(chosen, key, HIGHEST)))
        most = tl.maximum(most, tl.max(tl.where(live & (key < middle), key, LOWEST)))
    return count, mass, least, most


@triton.jit
def _find_cut(
    of,
    begin,
    end,
    low,
    high,
    wanted,
    COUNT: tl.constexpr,
    MASKED: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(the logit at which a filter ends, number and weight of the bins' tokens above it).

    It is the largest logit at and above which the bins from `begin` to `end` hold the wanted number (COUNT) or weight,
    as an ordered integer from `low` to `high`. The bisection halves the integers but moves from one existing logit to
    another.
    """
    low = low.to(tl.int64)
    high = high.to(tl.int64) + 1
    count = tl.zeros((), tl.int32)
    mass = tl.zeros((), tl.int64)
    while high - low > 1:
        middle = (low + high) // 2
        several, weight, least, most = _measure(of, begin, end, middle.to(tl.int32), MASKED, MOST, BLOCK)
        enough = several >= wanted if COUNT else weight.to(tl.float64) >= wanted
        if enough:
            low = least.to(tl.int64)
        else:
            high = tl.maximum(most.to(tl.int64), low) + 1
            count = several
            mass = weight
    return low.to(tl.int32), count, mass


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=ALIGNMENTS)
def _cut(
    kept,
    ties_out,
    cut_out,
    found_in,
    range_in,
    candidates,
    candidate_keys,
    ends,
    above,
    best_out,
    kind_in,
    floor_in,
    ceiling_in,
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
    MASKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the logit at which a row's filters end (the cut), and add the candidates that stay to its tiles; one program
    a row.

    At the start, a tile's ties are all its candidates; at the end, those whose logit is the cut. If all candidates have
    one logit, that is the cut and nothing is read.
    """
    r = tl.program_id(0)
    if tl.load(kind_in + r) != FILTERED:
        return
    row = row_of(logits, r, stride, ALIGNED)
    limited, mask = mask_of(row, masked, bits, r, vocab, MASKED)
    best = tl.load(best_out + r)
    scale = 1.0 / tl.load(temperature + r)
    least = tl.load(min_p + r)
    begin = tl.load(ends + r * 4)
    end = tl.load(ends + r * 4 + 1)
    counted = tl.load(ends + r * 4 + 2)
    found = tl.load(found_in + r)
    lowest = tl.load(range_in + r * 2)
    highest = tl.load(range_in + r * 2 + 1)
    floor = tl.load(floor_in + r)
    ceiling = tl.load(ceiling_in + r)
    listed = r.to(tl.int64) * MOST
    tokens, keys = candidates + listed, candidate_keys + listed
    of = (row, mask, limited, tokens, keys, found, vocab, best, scale, floor, ceiling)
    apart = (counted >= 0) & ((counted < begin) | (counted > end))
    cut = tl.full((), LOWEST, tl.int32)
    ties = tl.zeros((), tl.int32)
    mass = tl.load(above + r * 3 + 2)
    if counted >= 0:
        low = tl.where(apart, LOWEST, lowest)
        high = tl.where(apart, ordered(best), highest)
        missing = tl.load(top_k + r) - tl.load(ends + r * 4 + 3)
        cut, several, weight = _find_cut(of, counted, counted, low, high, missing, True, MASKED, MOST, BLOCK)
        ties = missing - several
        if mass >= 0:
            mass = tl.load(above + r * 3 + 1) + weight + ties * whole(weight_of(unordered(cut), best, scale))
    if mass >= 0:
        lacking = tl.load(top_p + r).to(tl.float64) * mass.to(tl.float64) - tl.load(above + r * 3).to(tl.float64)
        low = tl.maximum(cut, lowest)
        low, _several, weight = _find_cut(of, begin, end, low, highest, lacking, False, MASKED, MOST, BLOCK)
        one = whole(weight_of(unordered(low), best, scale)).to(tl.float64)
        few = tl.ceil((lacking - weight.to(tl.float64)) / one)
        fewest = tl.minimum(tl.maximum(few, 1.0), vocab * 1.0).to(tl.int32)
        ties = tl.where((low == cut) & (counted >= 0), tl.minimum(ties, fewest), fewest)
        cut = low
    tl.store(cut_out + r * 2, cut)
    tl.store(cut_out + r * 2 + 1, ties)
    if apart | (lowest < highest):
        for start in range(0, tl.where(found > MOST, vocab, found), BLOCK):
            token, key, b, weight, live = _candidates(of, start, MASKED, MOST, BLOCK)
            searched = live & (b >= begin) & (b <= end)
            tile = r.to(tl.int64) * tiles + token // _TILE
            tl.atomic_add(kept + tile, whole(weight), mask=searched & (key > cut) & (weight >= least), sem="relaxed")
            other = (searched | (live & (b == counted))) & (key != cut)
            tl.atomic_add(ties_out + tile, tl.full((BLOCK,), -1, tl.int32), mask=other, sem="relaxed")
