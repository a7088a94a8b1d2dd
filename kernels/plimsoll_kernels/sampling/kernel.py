"""The choice in Triton: one program a row, which never sorts.

Every filter keeps a beginning of the tokens in the order of their logits, so each looks for the logit at which it
ends: by bisection over the bits of floats, whose order as integers is that of the numbers. A pass counts (or weighs)
what lies above the middle and finds the logits next to it, so that the search steps from one logit that there is to
another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from plimsoll_kernels.sampling.masks import TokenMasks
from plimsoll_kernels.sampling.params import SMALLEST_TEMPERATURE, RowParams

BLOCK = 4096
_LOWEST = tl.constexpr(-(2**31))
_HIGHEST = tl.constexpr(2**31 - 1)


@triton.jit
def _ordered(x):
    """Integers in the order of floats; the two zeros are one."""
    u = (x + 0.0).to(tl.int32, bitcast=True)
    return u ^ ((u >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _load(row, mask, limited, token, inside, MASKED: tl.constexpr):
    """Logits of tokens; -infinity for those beyond the row, and for those that its mask leaves out unless it is NaN."""
    x = tl.load(row + token, mask=inside, other=float("-inf"))
    if MASKED:
        word = tl.load(mask + token // 32, mask=inside, other=-1)
        forbidden = limited & (((word >> (token % 32)) & 1) == 0) & (x == x)
        x = tl.where(forbidden, float("-inf"), x)
    return x


@triton.jit
def _measure_above(
    row, mask, limited, vocab, middle, best, scale, COUNT: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """How many logits (or what weight) are not below the middle, the least of those, and the largest of the others."""
    total = tl.zeros((), tl.float64)
    above = tl.full((), _HIGHEST, tl.int32)
    below = tl.full((), _LOWEST, tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < vocab
        x = _load(row, mask, limited, token, inside, MASKED)
        key = _ordered(x)
        chosen = inside & (key >= middle)
        if COUNT:
            total += tl.sum(chosen.to(tl.int32)).to(tl.float64)
        else:
            total += tl.sum(tl.where(chosen, tl.exp((x - best) * scale), 0.0).to(tl.float64))
        above = tl.minimum(above, tl.min(tl.where(chosen, key, _HIGHEST)))
        below = tl.maximum(below, tl.max(tl.where(inside & (key < middle), key, _LOWEST)))
    return total, above, below


@triton.jit
def _find_cut(
    row, mask, limited, vocab, low, best, scale, wanted, COUNT: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest key at and above which there is as much as wanted, and how much is above it; at least `low`."""
    high = _ordered(best).to(tl.int64) + 1
    low = low.to(tl.int64)
    beyond = tl.zeros((), tl.float64)
    while high - low > 1:
        middle = (low + high) // 2
        total, above, below = _measure_above(
            row, mask, limited, vocab, middle.to(tl.int32), best, scale, COUNT, MASKED, BLOCK
        )
        if total >= wanted:
            low = above.to(tl.int64)
        else:
            high = tl.maximum(below.to(tl.int64), low) + 1
            beyond = total
    return low.to(tl.int32), beyond


@triton.jit
def _kept(
    row,
    mask,
    limited,
    start,
    vocab,
    best,
    scale,
    cut,
    ties,
    seen,
    least,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Weights of a block's tokens, 0 where they are filtered out, and how many equal the cut so far."""
    token = start + tl.arange(0, BLOCK)
    inside = token < vocab
    x = _load(row, mask, limited, token, inside, MASKED)
    key = _ordered(x)
    equal = (inside & (key == cut)).to(tl.int32)
    rank = seen + tl.cumsum(equal, 0)
    weight = tl.exp((x - best) * scale)
    stays = inside & ((key > cut) | ((equal > 0) & (rank <= ties))) & (weight >= least)
    return tl.where(stays, weight, 0.0).to(tl.float64), seen + tl.sum(equal)


@triton.jit
def _sample(
    best_out,
    token_out,
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    uniform,
    masked,
    bits,
    stride,
    vocab,
    SMALLEST: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(0)
    row = logits + r.to(tl.int64) * stride
    if MASKED:
        which = tl.load(masked + r)
        limited = which >= 0
        mask = bits + tl.maximum(which, 0).to(tl.int64) * tl.cdiv(vocab, 32)
    else:
        limited = False
        mask = row
    best = tl.full((), float("-inf"), tl.float32)
    best_at = tl.zeros((), tl.int32)
    nan_at = tl.zeros((), tl.int32) + vocab
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = _load(row, mask, limited, token, token < vocab, MASKED)
        nan_at = tl.minimum(nan_at, tl.min(tl.where(x != x, token, vocab)))
        x = tl.where(x != x, float("-inf"), x)
        most = tl.max(x)
        if most > best:
            best = most
            best_at = tl.min(tl.where(x == most, token, vocab))
    chosen = tl.where(nan_at < vocab, nan_at, best_at)
    warmth = tl.load(temperature + r)
    finite = (nan_at == vocab) & (tl.abs(best) < float("inf"))
    if finite & (warmth >= SMALLEST):
        scale = 1.0 / warmth
        wanted = tl.load(top_k + r)
        share = tl.load(top_p + r).to(tl.float64)
        least = tl.load(min_p + r)
        cut = tl.full((), _LOWEST, tl.int32)
        ties = tl.zeros((), tl.int32) + vocab
        if (wanted > 0) & (wanted < vocab):
            cut, beyond = _find_cut(
                row, mask, limited, vocab, cut, best, scale, wanted.to(tl.float64), True, MASKED, BLOCK
            )
            ties = wanted - beyond.to(tl.int32)
        if share < 1.0:
            mass = tl.zeros((), tl.float64)
            seen = tl.zeros((), tl.int32)
            for start in range(0, vocab, BLOCK):
                weight, seen = _kept(row, mask, limited, start, vocab, best, scale, cut, ties, seen, 0.0, MASKED, BLOCK)
                mass += tl.sum(weight)
            end, beyond = _find_cut(row, mask, limited, vocab, cut, best, scale, share * mass, False, MASKED, BLOCK)
            one = tl.exp((_unordered(end) - best) * scale).to(tl.float64)
            fewest = tl.where(one > 0.0, tl.ceil((share * mass - beyond) / one), vocab * 1.0)
            fewest = tl.minimum(tl.maximum(fewest, 1.0), vocab * 1.0).to(tl.int32)
            ties = tl.where(end == cut, tl.minimum(ties, fewest), fewest)
            cut = end
        total = tl.zeros((), tl.float64)
        seen = tl.zeros((), tl.int32)
        for start in range(0, vocab, BLOCK):
            weight, seen = _kept(row, mask, limited, start, vocab, best, scale, cut, ties, seen, least, MASKED, BLOCK)
            total += tl.sum(weight)
        target = tl.load(uniform + r) * total
        before = tl.zeros((), tl.float64)
        seen = tl.zeros((), tl.int32)
        first = tl.zeros((), tl.int32) + vocab
        last = tl.zeros((), tl.int32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            weight, seen = _kept(row, mask, limited, start, vocab, best, scale, cut, ties, seen, least, MASKED, BLOCK)
            passed = (before + tl.cumsum(weight, 0) > target) & (weight > 0.0)
            first = tl.minimum(first, tl.min(tl.where(passed, token, vocab)))
            last = tl.maximum(last, tl.max(tl.where(weight > 0.0, token, 0)))
            before += tl.sum(weight)
        chosen = tl.minimum(first, last)
    tl.store(best_out + r, tl.where(nan_at < vocab, float("nan"), best))
    tl.store(token_out + r, chosen.to(tl.int64))


def launch_sample(
    logits: Tensor, params: RowParams, uniform: Tensor, masks: TokenMasks | None = None
) -> tuple[Tensor, Tensor]:
    """logits float32 `[R, V]` with contiguous rows -> the largest of each row `[R]`, and chosen tokens int64 `[R]`."""
    rows, vocab = logits.shape
    best = torch.empty(rows, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return best, tokens
    _sample[(rows,)](
        best,
        tokens,
        logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        uniform,
        None if masks is None else masks.masked,
        None if masks is None else masks.bits,
        logits.stride(0),
        vocab,
        SMALLEST=SMALLEST_TEMPERATURE,
        MASKED=masks is not None,
        BLOCK=min(BLOCK, triton.next_power_of_2(vocab)),
        num_warps=8,
        enable_fp_fusion=True,
    )
    return best, tokens
