"""Log probabilities in plain torch, without a look at any of them: a GPU's host goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.reports import Reports

KEYS = 2**21
"""How many keys there are at once: with what they are made of, 48 MiB."""


def log_probabilities_reference(logits: Tensor, tokens: Tensor, alternatives: Tensor, most: int) -> Reports:
    """logits float32 `[R, V]`, tokens int64 `[R]`, alternatives int32 `[R]`, at most `most` (op.py says what of)."""
    norm = torch.logsumexp(logits, dim=-1, keepdim=True)
    norm = norm.where(logits.amax(dim=-1, keepdim=True).isfinite(), torch.nan)
    chosen = logits.gather(-1, tokens[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    rows = max(1, KEYS // logits.shape[-1])
    top = torch.cat([_most_likely(part, most) for part in torch.split(logits, rows)])
    return Reports((chosen - norm).squeeze(-1), ranks, top, logits.gather(-1, top) - norm)


def _most_likely(logits: Tensor, most: int) -> Tensor:
    """The tokens of the largest logits, of equal ones the first first: `[R, V]` -> int64 `[R, most]`.

    Keys are the logits' bits, in the order of the numbers, above what is left of the vocabulary: none is like another.
    """
    vocab = logits.shape[-1]
    bits = (logits + 0.0).view(torch.int32)  # -0 is 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.to(torch.int64) << 32) | (vocab - 1 - torch.arange(vocab, device=logits.device))
    return vocab - 1 - (keys.topk(most, dim=-1).values & 0xFFFFFFFF)
