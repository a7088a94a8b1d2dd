"""Log probabilities in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.reports import Reports


def log_probabilities_reference(logits: Tensor, tokens: Tensor, alternatives: Tensor, most: int) -> Reports:
    """logits float32 `[R, V]`, tokens int64 `[R]`, alternatives int32 `[R]`, at most `most` (op.py says what of)."""
    norm = torch.logsumexp(logits, dim=-1, keepdim=True)
    norm = norm.where(logits.amax(dim=-1, keepdim=True).isfinite(), torch.nan)
    chosen = logits.gather(-1, tokens[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    # One more than is wanted shows whether the last one's equals were all in sight.
    width = min(most + 1, logits.shape[-1])
    values, top = torch.topk(logits, width, dim=-1)
    cut = (values[:, -1] == values[:, most - 1]) if 0 < most < width else torch.zeros_like(ranks, dtype=torch.bool)
    values, top = _in_order(values, top)
    if rows := cut.nonzero().squeeze(-1).tolist():
        sorted_values, order = torch.sort(logits[rows], dim=-1, descending=True, stable=True)
        values[rows], top[rows] = sorted_values[:, :width], order[:, :width]
    return Reports((chosen - norm).squeeze(-1), ranks, top[:, :most], values[:, :most] - norm)


def _in_order(values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Of equal values the first token first."""
    tokens, order = tokens.sort(dim=-1)
    values, place = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, tokens.gather(-1, place)
