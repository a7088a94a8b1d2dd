"""Sampling in plain torch: filters over sorted tokens, then the inverse of the cumulative distribution.

The cumulative sums are computed in float64 and in two levels (over groups of tokens, then inside one): a single float32
sum over a vocabulary of 262,144 would lose the tail.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from plimsoll_kernels.sampling.masks import TokenMasks, forbid
from plimsoll_kernels.sampling.params import SMALLEST_TEMPERATURE, RowParams

GROUP = 512
SHORTLIST = 1024
"""The number of most likely tokens that filters read first; a full sort is the exception (flat distributions)."""


def sample_reference(
    logits: Tensor,
    params: RowParams,
    uniform: Tensor,
    masks: TokenMasks | None = None,
    mass: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row `[R]` and the sampled tokens, int64 `[R]`; see `op.sample` for the terms."""
    if masks is not None:
        logits = forbid(logits, masks)
    best, tokens = logits.max(dim=-1)
    rows = (best.isfinite() & (params.temperature >= SMALLEST_TEMPERATURE)).nonzero().squeeze(-1)
    if rows.numel():
        own = None if mass is None else mass[rows]
        tokens[rows] = _draw(logits[rows] - best[rows, None], params.rows(rows), uniform[rows], own)
    return best, tokens


def weights_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the weights `[R, V]` of logits relative to the row's largest, whose weight is 1."""
    return (logits / temperature[:, None]).exp_()


def group_sums(weights: Tensor) -> Tensor:
    """Return cumulative sums of weights `[R, V]` over groups of tokens, float64 `[R, ceil(V / GROUP)]`."""
    groups = functional.pad(weights, (0, -weights.shape[1] % GROUP)).view(len(weights), -1, GROUP)
    return groups.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)


def _draw(logits: Tensor, params: RowParams, uniform: Tensor, mass: Tensor | None) -> Tensor:
    """Draw tokens int64 `[R]` from logits `[R, V]` relative to the row's largest."""
    weights = weights_of(logits, params.temperature)
    if bool(((params.top_k > 0) & (params.top_k < logits.shape[-1]) | (params.top_p < 1.0)).any()):
        weights = _keep_top(logits, weights, params, group_sums(weights)[:, -1] if mass is None else mass)
    weights = weights.masked_fill(weights < params.min_p[:, None], 0.0)
    return find_tokens(weights, uniform * group_sums(weights)[:, -1])


def _keep_top(logits: Tensor, weights: Tensor, params: RowParams, mass: Tensor) -> Tensor:
    """Zero weights outside the top-k, then outside the smallest set whose renormalised mass reaches top-p."""
    vocab = logits.shape[-1]
    top_k = torch.where((params.top_k > 0) & (params.top_k < vocab), params.top_k, vocab)
    limited = torch.where(top_k < vocab, top_k, 0).amax()
    wanted = min(vocab, max(SHORTLIST, int(limited) + 1))
    tokens = torch.topk(logits, wanted, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = torch.sort(logits.gather(-1, tokens), dim=-1, descending=True, stable=True)
    tokens = tokens.gather(-1, order)
    mass = torch.where(top_k < vocab, torch.nan, mass)
    kept, count = _nucleus(weights.gather(-1, tokens), top_k, params.top_p, mass)
    out = torch.zeros_like(weights).scatter_(-1, tokens, kept)
    if wanted < vocab:
        # These rows end above the shortlist's last logit: neither more tokens nor equal ones would change them.
        settled = (count < wanted) & (values.gather(-1, count[:, None] - 1).squeeze(-1) > values[:, -1])
        if rows := (~settled).nonzero().squeeze(-1).tolist():
            tokens = torch.sort(logits[rows], dim=-1, descending=True, stable=True).indices
            kept, _ = _nucleus(weights[rows].gather(-1, tokens), top_k[rows], params.top_p[rows], mass[rows])
            out[rows] = torch.zeros_like(kept).scatter_(-1, tokens, kept)
    return out


def _nucleus(weights: Tensor, top_k: Tensor, top_p: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Set the weights to 0 that top-k and top-p remove; also return the number that stays `[R]`, at least 1.

    weights: `[R, K]`, of each row's most likely tokens, the most likely first; all that top-k keeps. `mass`: the weight
    of a row, float64 `[R]`; NaN: that of its top-k.
    """
    width = weights.shape[-1]
    order = torch.arange(width, device=weights.device)
    inside = weights.masked_fill(order >= top_k[:, None], 0.0)
    sums = inside.double().cumsum(dim=-1)
    target = top_p.double() * torch.where(mass.isnan(), sums[:, -1], mass)
    nucleus = (sums - inside < target[:, None]) | (top_p >= 1.0)[:, None]
    nucleus[:, 0] = True
    nucleus &= order < top_k[:, None]
    return weights.masked_fill(~nucleus, 0.0), nucleus.sum(dim=-1)


def find_tokens(weights: Tensor, target: Tensor) -> Tensor:
    """Return the token int64 `[R]` at which the cumulative weight exceeds the target `[R]`; never one of weight 0."""
    rows, vocab = weights.shape
    groups = functional.pad(weights, (0, -vocab % GROUP)).view(rows, -1, GROUP)
    sums = groups.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = target[:, None]
    group = _first_beyond(sums, target)
    before = torch.where(group > 0, sums.gather(-1, (group - 1).clamp(min=0)), torch.zeros_like(target))
    inside = groups.gather(1, group[:, :, None].expand(-1, -1, GROUP)).squeeze(1)
    offset = _first_beyond(inside.cumsum(dim=-1, dtype=torch.float64), target - before)
    return (group * GROUP + offset).squeeze(-1)


def _first_beyond(sums: Tensor, target: Tensor) -> Tensor:
    """Return the first index whose cumulative sum exceeds the target, at most the last with a weight (`[R, 1]`)."""
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(sums, target, right=True), last)
