"""What a slot's sequence changes in its logits. Most sequences change nothing and have no such state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.engine.plan import SlotInit
from plimsoll_runtime.execution.sampling.history import TokenCounts


@dataclass(frozen=True, slots=True)
class SlotState:
    """Penalties, bias, and the tokens that `min_tokens` forbids for a while.

    History is kept only where a penalty reads it, the prompt only where the repetition penalty does.
    """

    params: SamplingParams
    forbidden_ids: NDArray[np.int64]
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    history: TokenCounts | None


def new_slot_state(init: SlotInit, eos_token_ids: tuple[int, ...], vocab_size: int) -> SlotState | None:
    """The state of a sequence that takes a slot, fresh or resumed; None where its logits stay as they are.

    The tokens that `min_tokens` forbids are the stop tokens, and EOS unless it is ignored anyway. Ids outside the
    vocabulary have no logit to change and are left out.
    """
    params = init.params
    repeated = params.repetition_penalty != 1.0
    penalised = repeated or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    if not penalised and not params.logit_bias and not params.min_tokens:
        return None
    biased = {t: b for t, b in params.logit_bias.items() if t < vocab_size}
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_token_ids))
    return SlotState(
        params=params,
        forbidden_ids=np.array(sorted(t for t in ends if t < vocab_size), dtype=np.int64),
        bias_ids=np.fromiter(biased, np.int64),
        bias=np.fromiter(biased.values(), np.float32),
        history=TokenCounts(init.prompt_ids if repeated else (), init.output_ids) if penalised else None,
    )
