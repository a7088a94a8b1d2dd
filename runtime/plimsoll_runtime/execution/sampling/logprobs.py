"""Log probabilities of chosen tokens and of the most likely ones, from unadjusted logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_runtime.engine.plan import TokenLogprob


def token_logprobs(logits: Tensor, tokens: Tensor, top: Sequence[int]) -> list[TokenLogprob]:
    """For each row its token's log probability and rank, and the `top[i]` most likely tokens.

    logits float32 [R, V], tokens int64 [R]. Ranks count from 1; equal logits share the better rank.
    """
    norm = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, tokens[:, None]).squeeze(-1)
    ranks = (logits > chosen[:, None]).sum(dim=-1) + 1
    width = max(top, default=0)
    if width:
        values, ids = torch.topk(logits, width, dim=-1)
        best_values, best_ids = (values - norm[:, None]).tolist(), ids.tolist()
    else:
        best_values = best_ids = [[]] * len(top)
    rows = zip(tokens.tolist(), (chosen - norm).tolist(), ranks.tolist(), best_ids, best_values, top, strict=True)
    return [
        TokenLogprob(token, logprob, rank, tuple(zip(ids_[:count], values_[:count], strict=True)))
        for token, logprob, rank, ids_, values_, count in rows
    ]
