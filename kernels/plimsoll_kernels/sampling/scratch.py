"""What the sampling kernels leave for one another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 128
"""Tokens whose largest logit and weight are kept: a row of 2^19 tokens has 4,096 tiles, which one program holds."""
BINS = 2048
MOST_CANDIDATES = 8192
"""Tokens of the bins in which filters end that are listed. Of 262,144 normally distributed logits these are 6,000."""


def tiles_of(vocab: int) -> int:
    """Tiles of a row; the last may be cut short."""
    return -(-vocab // TILE)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory of R rows of N tiles, none of it filled: the kernels write all that they read.

    - `keys` int32 and `weights` float32 `[R, N]`: the tile's largest logit as an ordered integer (numbers/kernel.py),
      and the weight of its tokens where that logit weighs 1.
    - `kept` int64 `[R, N]`: the weight that stays in a tile, its ties left out; `ties` int32 `[R, N]`: its candidates,
      in the end those that equal the cut.
    - `kind` int32 `[R]`: what remains to be done. `floor` float32 `[R]`: a logit below which no filter ends; `ceiling`
      float32 `[R]`: one from which bins count downwards.
    - `open_count` int32 `[R]`: tiles that have to be read again; `open_tiles` int32 `[R, N]`: which, in rising order.
    - `total` int64 `[R]`: the row's weight.
    - `counts` int32 and `masses` int64 `[R, BINS]`: tokens and weight of each bin.
    - `ends` int32 `[R, 4]`: the first and last bin in which top-p may end (without it top-k), that in which top-k ends
      (-1: none), and the tokens above that; `above` int64 `[R, 3]`: the weight above the first bin, that above top-k's,
      and what top-p is a share of where top-k does not say (-1: there is no top-p).
    - `found` int32 `[R]`: how many candidates there are; `candidates` and `candidate_keys` int32 `[R, C]`: tokens and
      logits, as ordered integers, of C of them at most, in any order.
    - `range` int32 `[R, 2]`: the least and largest candidate between the first and last bin, as ordered integers.
    - `cut` int32 `[R, 2]`: the ordered integer above which all stay, and how many of its equals do.
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
        """For logits `[rows, vocab]`."""
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
