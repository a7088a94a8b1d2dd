"""What the sampler remembers of the sequence in a slot."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.engine.plan import SlotInit

_NO_IDS = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class SlotState:
    """Parameters and history of one slot. `num_outputs` counts generated tokens, those before a preemption too.

    History is kept only where a penalty reads it: `prompt_ids` are the distinct tokens of the prompt, `counts` how
    often each token was generated.
    """

    params: SamplingParams
    seed: int
    num_outputs: int
    forbidden_ids: NDArray[np.int64]
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    prompt_ids: NDArray[np.int64] = field(default_factory=lambda: _NO_IDS)
    counts: Counter[int] = field(default_factory=Counter)

    @property
    def penalised(self) -> bool:
        """Whether any penalty changes this sequence's logits."""
        p = self.params
        return p.presence_penalty != 0.0 or p.frequency_penalty != 0.0 or p.repetition_penalty != 1.0

    @property
    def must_go_on(self) -> bool:
        """Whether min_tokens still forbids the tokens that would end the generation."""
        return self.num_outputs < self.params.min_tokens and self.forbidden_ids.size > 0

    def record(self, token_id: int) -> None:
        """Take note of a generated token."""
        self.num_outputs += 1
        if self.penalised:
            self.counts[token_id] += 1


def new_slot_state(init: SlotInit, eos_token_ids: tuple[int, ...], vocab_size: int) -> SlotState:
    """The state of a sequence that takes a slot, fresh or resumed.

    The tokens that `min_tokens` forbids are the stop tokens, and EOS unless it is ignored anyway. Ids outside the
    vocabulary have no logit to change and are left out.
    """
    biased = {t: b for t, b in init.params.logit_bias.items() if t < vocab_size}
    ends = set(init.params.stop_token_ids) | (set() if init.params.ignore_eos else set(eos_token_ids))
    state = SlotState(
        params=init.params,
        seed=init.seed,
        num_outputs=len(init.output_ids),
        forbidden_ids=np.array(sorted(t for t in ends if t < vocab_size), dtype=np.int64),
        bias_ids=np.fromiter(biased, np.int64),
        bias=np.fromiter(biased.values(), np.float32),
    )
    if state.penalised:
        state.prompt_ids = np.unique(np.array(init.prompt_ids, dtype=np.int64))
        state.counts.update(init.output_ids)
    return state
