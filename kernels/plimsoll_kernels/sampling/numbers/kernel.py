"""Functions and constants that all sampling kernels share.

Weights, exp((logit - largest) / temperature), are added as integers, in units of 2^-43 of the largest logit's weight: a
sum is then the same in any order of its terms, so atomic additions and any division of a row give one result. 2^19
tokens of weight 1 make 2^62. A weight below half a unit is 0: such a token is never drawn and no filter needs it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plimsoll_kernels.sampling.scratch import BINS, TILE

LOWEST = tl.constexpr(-(2**31))
"""Below the integer of every logit."""
HIGHEST = tl.constexpr(2**31 - 1)
"""Above the integers of all numbers, and the integer of NaN."""
DONE = tl.constexpr(0)
"""The row's token is sampled: it takes the largest logit, or has no finite logit."""
WHOLE = tl.constexpr(1)
"""No filter applies: all tokens may be drawn, by the weights of their tiles."""
FLOORED = tl.constexpr(2)
"""Only min-p applies: tokens of at least this weight may be drawn."""
FILTERED = tl.constexpr(3)
"""Top-k or top-p applies: the logit at which it ends must be found."""

_UNIT = tl.constexpr(2.0**43)
# Distances from 2^-27 to 2^5 temperatures: a weight is 0 beyond 30.5. 6 bits of their mantissa remain.
_SHIFT = tl.constexpr(17)
_NEAREST = tl.constexpr((127 - 27) << 6)
_BINS = tl.constexpr(BINS)
_TILE = tl.constexpr(TILE)


@triton.jit
def ordered(x):
    """Integers in the order of floats; the two zeros are equal, and every NaN is `HIGHEST`."""
    u = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x != x, HIGHEST, u ^ ((u >> 31) & 0x7FFFFFFF))


@triton.jit
def unordered(key):
    """The float of an ordered integer."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def row_of(logits, r, stride, ALIGNED: tl.constexpr):
    """The address of a row. ALIGNED: it is a multiple of 16 bytes."""
    row = logits + r.to(tl.int64) * stride
    if ALIGNED:
        row = tl.multiple_of(row, 16)
    return row


@triton.jit
def mask_of(row, masked, bits, r, vocab, MASKED: tl.constexpr):
    """Whether a row has a mask, and the address of its words."""
    limited = r < 0
    mask = row
    if MASKED:
        which = tl.load(masked + r)
        limited = which >= 0
        mask = bits + tl.maximum(which, 0).to(tl.int64) * tl.cdiv(vocab, 32)
    return limited, mask


@triton.jit
def load_logits(row, mask, limited, token, inside, MASKED: tl.constexpr):
    """Logits of tokens; -infinity for those not inside, and for forbidden ones unless they are NaN."""
    x = tl.load(row + token, mask=inside, other=float("-inf"))
    if MASKED:
        word = tl.load(mask + token // 32, mask=inside, other=-1)
        forbidden = limited & (((word >> (token % 32)) & 1) == 0) & (x == x)
        x = tl.where(forbidden, float("-inf"), x)
    return x


@triton.jit
def weight_of(x, best, scale):
    """A logit's weight, 1 for the largest; best must be finite."""
    return tl.exp((x - best) * scale)


@triton.jit
def whole(weight):
    """A float32 weight in units of 2^-43."""
    return (weight * _UNIT + 0.5).to(tl.int64)


@triton.jit
def bin_of(x, ceiling, scale):
    """0 to BINS - 1, rising as logits fall: 0 above the ceiling, the others with a width of 1/64 of their distance."""
    bits = (tl.maximum(ceiling - x, 0.0) * scale).to(tl.int32, bitcast=True)
    below = tl.minimum(tl.maximum((bits >> _SHIFT) - _NEAREST + 1, 1), _BINS - 1)
    return tl.where(x > ceiling, 0, below)


@triton.jit
def tokens_of(tile):
    """The tokens of each tile, `[len(tile), TILE]`."""
    return tile[:, None] * _TILE + tl.arange(0, _TILE)[None, :]
