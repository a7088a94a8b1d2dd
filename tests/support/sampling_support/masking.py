"""Masks of tokens, and masked logits as the reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plimsoll_kernels.sampling.masks import TokenMasks, words_of


def random_masks(seed: int, rows: int, vocab: int, device: str = "cpu") -> tuple[TokenMasks, Tensor]:
    """Return masks for about half of the rows, in another order, and the allowed tokens of each row, bool `[R, V]`.

    A masked row has at least one allowed token. The bits beyond the vocabulary are random.
    """
    generator = torch.Generator().manual_seed(seed)
    words = words_of(vocab)
    chosen = torch.randperm(rows, generator=generator)[: (rows + 1) // 2]
    share = torch.rand(len(chosen), 1, generator=generator)
    bits = torch.rand(len(chosen), words * 32, generator=generator) < share
    bits[torch.arange(len(chosen)), torch.randint(0, vocab, (len(chosen),), generator=generator)] = True
    weights = 2 ** torch.arange(32, dtype=torch.int64)
    packed = (bits.view(len(chosen), words, 32) * weights).sum(-1)
    masked = torch.full((rows,), -1, dtype=torch.int32)
    masked[chosen] = torch.arange(len(chosen), dtype=torch.int32)
    may = torch.ones(rows, vocab, dtype=torch.bool)
    may[chosen] = bits[:, :vocab]
    signed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return TokenMasks(masked.to(device), signed.to(device)), may


def by_hand(logits: Tensor, may: Tensor) -> Tensor:
    """Return the logits with -infinity for forbidden tokens."""
    return logits.masked_fill(~may.to(logits.device), -math.inf)
