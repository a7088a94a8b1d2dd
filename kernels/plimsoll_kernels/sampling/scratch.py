"""Memory through which the sampling kernels pass intermediate results."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 128
"""Tokens of a tile: a row of 2^19 tokens has 4,096 tiles, which one program can hold."""
BINS = 2048
MOST_CANDIDATES = 8192
"""The most listed tokens of the bins in which filters end. For 262,144 normally distributed logits they are 6,000."""


def tiles_of(vocab: int) -> int:
    """Return the number of tiles of a row of logits; the last may be shorter."""
    return -(-vocab // TILE)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Uninitialised memory of R rows of N tiles: the kernels write everything that they read.

    - `keys` int32 and `weights` float32 `[R, N]`: the tile's largest logit as an ordered integer (numbers/kernel.py),
      and the weight of its tokens relative to that logit.
    - `kept` int64 `[R, N]`: the weight that stays in a tile, without ties; `ties` int32 `[R, N]`: its candidates, in
      the end those equal to the cut.
    - `kind` int32 `[R]`: the remaining work. `floor` float32 `[R]`: a logit below which no filter ends; `ceiling`
      float32 `[R]`: the logit from which bins count downwards.
    - `open_count` int32 `[R]`: the number of tiles that must be read again; `open_tiles` int32 `[R, N]`: their numbers,
      rising.
    - `total` int64 `[R]`: the row's weight.
    - `counts` int32 and `masses` int64 `[R, BINS]`: tokens and weight of each bin.
    - `ends` int32 `[R, 4]`: the first and last bin in which top-p may end (without it top-k), the bin in which top-k
      ends (-1: none), and the tokens above that; `above` int64 `[R, 3]`: the weight above the first bin, the weight
      above top-k's bin, and the weight that top-p is a share of if top-k does not determine it (-1: no top-p).
    - `found` int32 `[R]`: the number of candidates; `candidates` and `candidate_keys` int32 `[R, C]`: tokens and
      logits, as ordered integers, of at most C of them, in any order.
    - `range` int32 `[R, 2]`: the least and largest candidate between the first and last bin, as ordered integers.
    - `cut` int32 `[R, 2]`: the ordered integer above which all stay, and the number of equal ones that stay.
    """

    keys: Tensor
    weights: Tensor
    kept: Tensor
    ties: Tensor
    kind: Tensor
    open_tiles: Tensor
    open_count: Tensor
    floor: Tensor
    ceiling: Tensor
    total: Tensor
    counts: Tensor
    masses: Tensor
    ends: Tensor
    above: Tensor
    found: Tensor
    range: Tensor
    candidates: Tensor
    candidate_keys: Tensor
    cut: Tensor

    @classmethod
    def of(cls, rows: int, vocab: int, device: torch.device) -> Scratch:
        """Return memory for logits `[rows, vocab]`."""
        tiles = tiles_of(vocab)

        def fresh(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(rows, *shape, dtype=dtype, device=device)

        return cls(
            keys=fresh(torch.int32, tiles),
            weights=fresh(torch.float32, tiles),
            kept=fresh(torch.int64, tiles),
            ties=fresh(torch.int32, tiles),
            kind=fresh(torch.int32),
            open_tiles=fresh(torch.int32, tiles),
            open_count=fresh(torch.int32),
            floor=fresh(torch.float32),
            ceiling=fresh(torch.float32),
            total=fresh(torch.int64),
            counts=fresh(torch.int32, BINS),
            masses=fresh(torch.int64, BINS),
            ends=fresh(torch.int32, 4),
            above=fresh(torch.int64, 3),
            found=fresh(torch.int32),
            range=fresh(torch.int32, 2),
            candidates=fresh(torch.int32, min(vocab, MOST_CANDIDATES)),
            candidate_keys=fresh(torch.int32, min(vocab, MOST_CANDIDATES)),
            cut=fresh(torch.int32, 2),
        )
