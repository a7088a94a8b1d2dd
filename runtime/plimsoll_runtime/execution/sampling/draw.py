"""Drawing tokens: temperature, top-k, top-p and min-p per row, then the inverse of the cumulative distribution.

One uniform number a row decides the token, so that a row's draw is a function of its logits and that number
alone. The cumulative sums run in float64 and in two levels (over groups of tokens, then inside one): a single
float32 sum over a vocabulary of 262,144 would lose the tail.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 512
SHORTLIST = 1024
"""Filters look at this many of the most likely tokens first; a full sort is the exception (flat distributions)."""


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Per-row parameters on the logits' device: float32 [R], `top_k` int64 [R] (the vocabulary size when off).

    `filtered` says whether any row's top-k or top-p leaves something out, `floored` the same for min-p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    filtered: bool
    floored: bool
    max_top_k: int


def draw(logits: Tensor, params: DrawParams, uniform: Tensor) -> Tensor:
    """Draw one token for each row (logits float32 [R, V], uniform float64 [R] in [0, 1) -> int64 [R])."""
    weights = torch.softmax(logits / params.temperature[:, None], dim=-1)
    floor = weights.amax(dim=-1, keepdim=True) * params.min_p[:, None] if params.floored else None
    if params.filtered:
        weights = _keep_top(weights, params)
    if floor is not None:
        weights = weights.masked_fill(weights < floor, 0.0)
    return _invert(weights, uniform)


def _keep_top(weights: Tensor, params: DrawParams) -> Tensor:
    """Zero what lies outside the top-k, then outside the smallest set whose renormalised mass reaches top-p."""
    vocab = weights.shape[-1]
    wanted = min(vocab, max(SHORTLIST, params.max_top_k))
    values, tokens = torch.topk(weights, wanted, dim=-1)
    kept, settled = _nucleus(values, params, complete=wanted == vocab)
    out = torch.zeros_like(weights).scatter_(-1, tokens, kept)
    if not bool(settled.all()):
        rows = (~settled).nonzero().squeeze(-1)
        values, tokens = torch.sort(weights[rows], dim=-1, descending=True, stable=True)
        kept, _ = _nucleus(values, _rows_of(params, rows), complete=True)
        out[rows] = torch.zeros_like(values).scatter_(-1, tokens, kept)
    return out


def _nucleus(values: Tensor, params: DrawParams, *, complete: bool) -> tuple[Tensor, Tensor]:
    """Filter weights sorted from the largest [R, K]; also whether a row needs nothing beyond them [R].

    `complete` says that K is the vocabulary. A row's mass is that of its top-k: 1 when top-k is off, which is
    known without seeing the tail because the weights are a softmax.
    """
    width = values.shape[-1]
    order = torch.arange(width, device=values.device)
    in_top_k = order < params.top_k[:, None]
    values = values.masked_fill(~in_top_k, 0.0)
    within = params.top_k <= width
    sums = values.double().cumsum(dim=-1)
    mass = torch.where(within, sums[:, -1], torch.ones_like(sums[:, -1]))
    target = params.top_p.double() * mass
    before = sums - values
    nucleus = (before < target[:, None]) | (params.top_p >= 1.0)[:, None]
    nucleus[:, 0] = True
    settled = (within & (params.top_p >= 1.0)) | (sums[:, -1] >= target) & (params.top_p < 1.0)
    if complete:
        settled = torch.ones_like(settled)
    return values.masked_fill(~nucleus, 0.0), settled


def _rows_of(params: DrawParams, rows: Tensor) -> DrawParams:
    return DrawParams(
        temperature=params.temperature[rows],
        top_k=params.top_k[rows],
        top_p=params.top_p[rows],
        min_p=params.min_p[rows],
        filtered=params.filtered,
        floored=params.floored,
        max_top_k=params.max_top_k,
    )


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative weight passes uniform x total; never one of weight zero."""
    rows, vocab = weights.shape
    groups = functional.pad(weights, (0, -vocab % GROUP)).view(rows, -1, GROUP)
    sums = groups.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniform[:, None] * sums[:, -1:]
    group = _first_beyond(sums, target)
    before = torch.where(group > 0, sums.gather(-1, (group - 1).clamp(min=0)), torch.zeros_like(target))
    inside = groups.gather(1, group[:, :, None].expand(-1, -1, GROUP)).squeeze(1)
    offset = _first_beyond(inside.cumsum(dim=-1, dtype=torch.float64), target - before)
    return (group * GROUP + offset).squeeze(-1)


def _first_beyond(sums: Tensor, target: Tensor) -> Tensor:
    """First index whose cumulative sum exceeds the target, at most the last one that adds anything ([R, 1])."""
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(sums, target, right=True), last)
