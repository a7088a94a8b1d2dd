"""The sampler: one batched choice of tokens a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from plimsoll_kernels.sampling.op import sample
from plimsoll_runtime.engine.plan import SequenceOutput, SlotInit, TokenLogprob
from plimsoll_runtime.execution.sampling.adjust import adjust
from plimsoll_runtime.execution.sampling.constrained import ConstrainedRows, Recorded
from plimsoll_runtime.execution.sampling.logprobs import token_logprobs
from plimsoll_runtime.execution.sampling.state import NO_TOKEN, SamplingState

NOT_FINITE = "the model's logits are not finite (NaN or infinity): its weights or the chosen dtype are at fault"


class Sampler:
    """Chooses one token for each row of logits by the parameters of the slot that the row belongs to.

    `constrains`: whether a slot has a constraint, so that `begin` is to be told of each step.
    """

    def __init__(
        self, vocab_size: int, eos_token_ids: tuple[int, ...], constrained: ConstrainedRows | None = None
    ) -> None:
        self._state = SamplingState(vocab_size, eos_token_ids)
        self._constrained = constrained
        self.constrains = False

    def fill(self, init: SlotInit) -> None:
        """A sequence takes a slot."""
        self._state.fill(init)
        if self._constrained is not None:
            self._constrained.fill(init)
            self.constrains = self._constrained.active

    def free(self, slot: int) -> None:
        """A slot is empty again."""
        self._state.free(slot)
        if self._constrained is not None:
            self._constrained.free(slot)
            self.constrains = self._constrained.active

    def begin(self, slots: Sequence[int]) -> None:
        """A step that will sample these slots is about to be computed: what they may choose is found out meanwhile."""
        if self._constrained is not None:
            self._constrained.begin(slots)

    def prompt_logprob_count(self, slot: int) -> int:
        """How many alternatives a prompt position of this slot reports."""
        return self._state.prompt_logprob_count(slot)

    def sample(self, logits: Tensor, slots: Sequence[int]) -> list[SequenceOutput]:
        """Choose a token for each row (logits float32 [R, V], which may be changed) and record it.

        A row with a NaN or an infinite maximum gets an error instead of a token; the others are not affected.
        """
        state = self._state
        rows = state.rows(tuple(slots), logits.device)
        constrained = self._constrained if self.constrains else None
        masks = None if constrained is None else constrained.finish(slots, logits.device)
        raw = logits
        if rows.reported is not None and (rows.adjusted or masks is not None):
            raw = logits.clone()
        if rows.adjusted:
            adjust(logits, rows.adjusted, state.num_outputs(rows))
        best, chosen = sample(logits, rows.params, state.uniforms(rows, logits.device), masks)
        reports = {} if rows.reported is None else _report(raw, chosen, rows.reported, rows.alternatives)
        tokens = _on_host(best, chosen)
        state.record(rows, tokens)
        if constrained is None and not reports and NO_TOKEN not in tokens:
            return [SequenceOutput(token) for token in tokens]
        failed, forced = Recorded({}, {}) if constrained is None else constrained.record(slots, tokens)
        failed |= {row: NOT_FINITE for row, token in enumerate(tokens) if token == NO_TOKEN}
        for row, more in forced.items():
            state.record_forced(slots[row], more)
        return [
            SequenceOutput(error=failed[row])
            if row in failed
            else SequenceOutput(token, reports.get(row), forced=forced.get(row, ()))
            for row, token in enumerate(tokens)
        ]


def _on_host(best: Tensor, chosen: Tensor) -> list[int]:
    """The chosen tokens, or NO_TOKEN where a row's largest logit is not finite."""
    if best.is_cuda:
        return list(torch.where(best.isfinite(), chosen, NO_TOKEN).tolist())
    # Each call into torch or numpy is a part of a small step that can be seen; a sum of float32s is finite if all are.
    tokens: list[int] = chosen.tolist()
    largest: list[float] = best.tolist()
    if math.isfinite(sum(largest)):
        return tokens
    return [token if math.isfinite(value) else NO_TOKEN for token, value in zip(tokens, largest, strict=True)]


def _report(raw: Tensor, tokens: Tensor, rows: Tensor, alternatives: Sequence[int]) -> dict[int, TokenLogprob]:
    """Log probabilities of the rows that asked for them, by row."""
    everyone = len(alternatives) == raw.shape[0]
    found = (
        token_logprobs(raw, tokens, alternatives) if everyone else token_logprobs(raw[rows], tokens[rows], alternatives)
    )
    return dict(zip(rows.tolist(), found, strict=True))
