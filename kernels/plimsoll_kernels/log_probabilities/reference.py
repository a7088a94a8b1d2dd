"""Log probabilities in plain torch, without reading any value on the host, so that it does not wait for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.reports import Reports

KEYS = 2**21
"""The most sort keys (see `_most_likely`) computed at once: 48 MiB with their inputs."""


def log_probabilities_reference(logits: Tensor, tokens: Tensor, alternatives: Tensor, most: int) -> Reports:
    """Return log probabilities of logits float32 `[R, V]`, tokens int64 `[R]`, alternatives int32 `[R]` up to `most`.

    See `op.log_probabilities` for the terms.
    """
    norm = torch.logsumexp(logits, dim=-1, keepdim=True)
    norm = norm.where(logits.amax(dim=-1, keepdim=True).isfinite(), torch.nan)
    chosen = logits.gather(-1, tokens[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    rows = max(1, KEYS // logits.shape[-1])
    top = torch.cat([_most_likely(part, most) for part in torch.split(logits, rows)])
    return Reports((chosen - norm).squeeze(-1), ranks, top, logits.gather(-1, top) - norm)


def _most_likely(logits: Tensor, most: int) -> Tensor:
    """Return the tokens of the largest logits `[R, V]` -> int64 `[R, most]`; of equal ones the first in the vocabulary.

    A key is the logit's bits, in the order of the numbers, above the number of later tokens, so all keys differ.
    """
    vocab = logits.shape[-1]
    bits = (logits + 0.0).view(torch.int32)  # -0 is 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.to(torch.int64) << 32) | (vocab - 1 - torch.arange(vocab, device=logits.device))
    return vocab - 1 - (keys.topk(most, dim=-1).values & 0xFFFFFFFF)
