"""Log probabilities of chosen tokens and of the most likely ones, from unadjusted logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_kernels.log_probabilities.op import log_probabilities
from plimsoll_runtime.engine.plan import TokenLogprob


def token_logprobs(logits: Tensor, tokens: Tensor, top: Sequence[int]) -> list[TokenLogprob]:
    """For each row its token's log probability and rank, and the `top[i]` most likely tokens.

    logits float32 [R, V], tokens int64 [R]. Ranks count from 1; equal logits share the better rank. More tokens than
    the vocabulary has are not told.
    """
    wanted = [min(count, logits.shape[-1]) for count in top]
    alternatives = torch.tensor(wanted, dtype=torch.int32, device=logits.device)
    found = log_probabilities(logits, tokens, alternatives, max(wanted, default=0))
    chosen = zip(tokens.tolist(), found.chosen.tolist(), found.ranks.tolist(), strict=True)
    if not any(wanted):
        return [TokenLogprob(token, logprob, rank) for token, logprob, rank in chosen]
    alternative = zip(found.top_tokens.tolist(), found.top.tolist(), wanted, strict=True)
    return [
        TokenLogprob(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for (token, logprob, rank), (ids, values, count) in zip(chosen, alternative, strict=True)
    ]
