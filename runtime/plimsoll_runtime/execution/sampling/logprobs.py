"""Log probabilities of chosen tokens and of the most likely ones, from unadjusted logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from plimsoll_kernels.log_probabilities.op import log_probabilities
from plimsoll_kernels.log_probabilities.reports import Reports
from plimsoll_runtime.engine.protocol.plan import TokenLogprob
from plimsoll_runtime.models.layers.device_copy import sent


def reports_of(logits: Tensor, tokens: Tensor, top: Sequence[int]) -> Reports:
    """For each row its token's log probability and rank, and the `top[i]` most likely tokens, on the logits' device,
    where nobody waits for it.

    logits float32 [R, V], tokens int64 [R]. Ranks count from 1; equal logits share the better rank. More tokens than
    the vocabulary has are not told.
    """
    wanted = [min(count, logits.shape[-1]) for count in top]
    alternatives = sent(np.array(wanted, dtype=np.int32), logits.device)
    return log_probabilities(logits, tokens, alternatives, max(wanted, default=0))


def told(tokens: Sequence[int], found: Reports, top: Sequence[int]) -> list[TokenLogprob]:
    """What there is to tell of tokens, of which `top[i]` alternatives are wanted."""
    chosen = zip(tokens, found.chosen.tolist(), found.ranks.tolist(), strict=True)
    if not any(top):
        return [TokenLogprob(token, logprob, rank) for token, logprob, rank in chosen]
    alternative = zip(found.top_tokens.tolist(), found.top.tolist(), top, strict=True)
    return [
        TokenLogprob(token, logprob, rank, tuple(zip(ids[:count], values[:count], strict=True)))
        for (token, logprob, rank), (ids, values, count) in zip(chosen, alternative, strict=True)
    ]
