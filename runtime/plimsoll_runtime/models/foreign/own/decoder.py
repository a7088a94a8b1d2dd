"""A decoder whose code is Transformers', with a cache of Transformers' own for each sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.attention import Attention
from plimsoll_runtime.models.foreign.outline import TransformersOutline
from plimsoll_runtime.models.foreign.own.step import Call, OwnStep, calls_of, pieces_of
from plimsoll_runtime.models.foreign.own.stepper import Stepper
from plimsoll_runtime.models.foreign.skeleton import stored_tensors
from plimsoll_runtime.models.states import States


class OwnCacheDecoder:
    """See Decoder. Sequences that stand at one position, with as many tokens each, are one call to the model."""

    def __init__(self, outline: TransformersOutline, model: Any, dtype: torch.dtype) -> None:
        assert outline.own is not None, "attends through our interface, and keeps nothing"
        self.outline = outline
        self.dtype = dtype
        self.weight_bytes = sum(tensor.nbytes for _, tensor in stored_tensors(model))
        self._own = outline.own
        self._stepper = Stepper(model, outline.own.calling)

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""
        if not isinstance(states, OwnStep):
            raise TypeError(f"sequences with caches of their own need a step of them, not {type(states).__name__}")
        result: Tensor | None = None
        for call in calls_of(states, self._own):
            index = _index(call, token_ids.device)
            hidden = self._computed(call, token_ids[index], states)
            if result is None:
                result = hidden.new_empty(len(token_ids), hidden.shape[-1])
            result[index] = hidden
        assert result is not None
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab]."""
        return self._stepper.logits(hidden)

    def _computed(self, call: Call, tokens: Tensor, step: OwnStep) -> Tensor:
        """tokens [B, n] -> hidden states [B, n, hidden]."""
        rows = step.rows
        stacks = rows.begin(call.slots) if call.start == 0 else rows.gather(call.slots)
        found = []
        for stack in stacks:
            order = [call.slots.index(slot) for slot in stack.slots]
            own = tokens[order]
            for first, count in pieces_of(call, self._own):
                hidden, stack.cache = self._stepper.step(own[:, first : first + count], stack.tokens, stack.cache)
                stack.tokens += count
                found.append((order, first, hidden))
        result = found[0][2].new_empty(*tokens.shape, found[0][2].shape[-1])
        for order, first, hidden in found:
            result[order, first : first + hidden.shape[1]] = hidden
        return result


def _index(call: Call, device: torch.device) -> Tensor:
    """int64 [B, n]: where each token of a call lies among the rows of the step."""
    return torch.tensor(call.firsts, device=device)[:, None] + torch.arange(call.length, device=device)
