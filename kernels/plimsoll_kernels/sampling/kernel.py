"""Sampling in Triton: rows are divided among programs, logits are read at most three times, and nothing is sorted.

Every filter keeps the first tokens in the order of their logits, so each searches the logit at which it ends. There are
seven launches; those in capitals read the logits of rows, in pieces by many programs:

1. TILES: the largest logit and the weight of every 128 tokens.
2. plan, a program a row: the largest logit; and from the tiles alone a bound below which no filter ends, which gives
   the open tiles, to be read again.
3. COUNT: the open tiles' tokens and weight by distance from about where a filter ends.
4. ends, a program a row: the bins in which the filters end.
5. COLLECT: the weight above those bins by tiles, and a list of the tokens in them.
6. cut, a program a row: the logits at which the filters end, by bisection among the listed tokens.
7. draw, a program a row: the tile in which the uniform number falls, and in it the token.

Readings, as counted by tests: a row that takes the largest logit, or draws without filters, is read once; with min-p
alone, tiles with a token that stays are read a second time. Filters that keep little (top-k of 50, top-p of a confident
model) read about a tenth of the row in addition. Flat logits under top-p, and a top-k above the number of tiles, need
three readings. If more than 8,192 different tokens are within 1/64 of one distance, the list is too short, and one
program reads the row again in each step of the bisection, some 25 times; only artificial logits do this.

Memory traffic: a reading is rows x vocabulary x 4: bytes, 156 MB for 256 rows of 152,064 tokens, 36 us at 4.3 TB/s. A
tile leaves 24 bytes (5 %), a filtered row 24 KiB of bins; with the list, a row of 152,064 takes 118 KB of scratch. Only
the work of programs depends on data, not the launches, so a graph can contain them. A row's token is the same in every
batch and division, because sums are of integers or within one tile.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from plimsoll_kernels.processors import multiprocessors
from plimsoll_kernels.sampling.bins.kernel import _count, _ends
from plimsoll_kernels.sampling.candidates.kernel import _collect, _cut
from plimsoll_kernels.sampling.division import TILES_AT_ONCE, Division
from plimsoll_kernels.sampling.draw.kernel import _draw
from plimsoll_kernels.sampling.masks import TokenMasks
from plimsoll_kernels.sampling.params import SMALLEST_TEMPERATURE, RowParams
from plimsoll_kernels.sampling.plan.kernel import _plan
from plimsoll_kernels.sampling.scratch import Scratch
from plimsoll_kernels.sampling.tiles.kernel import _tiles

BLOCK = 2048
"""Candidates that a program reads at once."""
EXACT = {"enable_fp_fusion": False}
"""Without fusion, a number that two kernels compute is the same in both."""


def launch_sample(
    logits: Tensor, params: RowParams, uniform: Tensor, masks: TokenMasks | None = None
) -> tuple[Tensor, Tensor]:
    """Sample logits float32 `[R, V]` with contiguous rows -> the largest of each row `[R]`, and tokens int64 `[R]`."""
    rows = logits.shape[0]
    best = torch.empty(rows, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _launch(best, tokens, logits, params, uniform, masks)
    return best, tokens


def _launch(
    best: Tensor, tokens: Tensor, logits: Tensor, params: RowParams, uniform: Tensor, masks: TokenMasks | None
) -> None:
    rows, vocab = logits.shape
    s = Scratch.of(rows, vocab, logits.device)
    tiles, most = s.keys.shape[1], s.candidates.shape[1]
    share = Division.of(rows, tiles, multiprocessors(logits.device))
    own = (None, None) if masks is None else (masks.masked, masks.bits)
    temperature, top_k, top_p, min_p = params.temperature, params.top_k, params.top_p, params.min_p
    row = (*own, logits.stride(0), vocab, tiles)
    aligned = logits.stride(0) % 4 == 0 and logits.data_ptr() % 16 == 0
    read = {"MASKED": masks is not None, "ALIGNED": aligned, **EXACT}
    divided = {"splits": share.splits, "TILES": TILES_AT_ONCE, **read, "num_warps": 4}
    joined = {"SPAN": triton.next_power_of_2(tiles), **read, "num_warps": 8}
    drawn = {"SMALLEST": SMALLEST_TEMPERATURE}
    opened, listed, bounds = (s.open_tiles, s.open_count), (s.candidates, s.candidate_keys), (s.floor, s.ceiling)
    many, few = (rows * share.splits,), (rows,)
    _tiles[many](s.keys, s.weights, logits, temperature, *row, loops=share.loops, **drawn, **divided)
    _plan[few](
        *(best, tokens, s.keys, s.weights, s.kept, s.ties, s.kind, *opened, *bounds, s.total, s.counts, s.masses),
        *(s.found, s.range, logits, temperature, top_k, top_p, min_p, *row),
        **drawn,
        **joined,
    )
    _count[many](s.counts, s.masses, best, s.kind, *bounds, *opened, logits, temperature, *row, **divided)
    _ends[few](s.ends, s.above, s.counts, s.masses, s.kind, s.total, top_k, top_p, vocab, num_warps=8, **EXACT)
    _collect[many](
        *(s.kept, s.ties, s.found, s.range, *listed, s.ends, best, *bounds, *opened, logits, temperature, min_p, *row),
        MOST=most,
        **divided,
    )
    _cut[few](
        *(s.kept, s.ties, s.cut, s.found, s.range, *listed, s.ends, s.above, best, s.kind, *bounds, logits),
        *(temperature, top_k, top_p, min_p, *row),
        MOST=most,
        BLOCK=BLOCK,
        **read,
        num_warps=8,
    )
    _draw[few](
        tokens, s.kept, s.ties, s.cut, best, s.kind, s.floor, logits, temperature, min_p, uniform, *row, **joined
    )
