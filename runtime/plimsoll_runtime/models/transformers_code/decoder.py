"""Decoders that run Transformers code: with our attention, or with the model's own cache objects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.states import States
from plimsoll_runtime.models.transformers_code.attention_interface import Call, connect
from plimsoll_runtime.models.transformers_code.cache_calls import Stepper
from plimsoll_runtime.models.transformers_code.cache_rows import CacheCall, OwnStep, calls_of, pieces_of
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from plimsoll_runtime.models.transformers_code.skeleton import Halves, stored_tensors


class TransformersDecoder:
    """A Decoder with our attention. To the model, all rows of a step are one sequence with arbitrary positions."""

    def __init__(self, outline: TransformersOutline, model: Any, dtype: torch.dtype) -> None:
        self.outline = outline
        self.dtype = dtype
        self.weight_bytes = sum(tensor.nbytes for _, tensor in stored_tensors(model))
        self._halves = Halves(model, model.get_submodule(outline.base))
        self._layers = _Layers(outline)
        connect(model, self._layers)

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """Compute final hidden states [T, hidden], normalised, from token_ids and positions, both int64 [T]."""
        self._layers.begin(attention)
        hidden = self._halves.hidden(token_ids, positions)
        self._layers.end()
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [R, vocab] of hidden [R, hidden]."""
        return self._halves.logits(hidden)


class _Layers:
    """Assigns the attention calls of a step, in order, to the layers of the cache."""

    def __init__(self, outline: TransformersOutline) -> None:
        self._shapes = outline.facts.attention
        self._attention: Attention | None = None
        self._next = 0

    def begin(self, attention: Attention) -> None:
        """Start a step, or start it again with another backend."""
        self._attention = attention
        self._next = 0

    def end(self) -> None:
        """End a step. Raises UnservedError if the model has skipped layers."""
        self._attention = None
        if self._next != len(self._shapes):
            raise UnservedError(
                f"called attention {self._next} times in a step, but {len(self._shapes)} times when probed"
            )

    def attend(self, call: Call) -> Tensor:
        """Run the next layer's attention. Raises UnservedError if the call differs from the probed one."""
        layer = self._next
        self._next += 1
        expected = self._shapes[layer] if layer < len(self._shapes) else None
        if self._attention is None or expected is None or call.shape(expected.window) != expected:
            raise UnservedError(
                f"calls attention in layer {layer} with {call.shape(call.window)} instead of {expected}"
            )
        if call.mask is not None or call.window not in (None, expected.window):
            raise UnservedError(f"masks tokens in layer {layer}, or has a window other than {expected.window}")
        return self._attention(layer, *call.rows())[..., : call.value.shape[-1]]


class OwnCacheDecoder:
    """A Decoder with the model's own caches. Sequences at one position with equally many tokens share a call to the
    model, if possible.
    """

    def __init__(self, outline: TransformersOutline, model: Any, dtype: torch.dtype) -> None:
        assert outline.own is not None, "the model uses our attention and has no own cache"
        self.outline = outline
        self.dtype = dtype
        self.weight_bytes = sum(tensor.nbytes for _, tensor in stored_tensors(model))
        self._own = outline.own
        self._stepper = Stepper(model, outline.own.calling)

    def __call__(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States | None = None
    ) -> Tensor:
        """Compute final hidden states [T, hidden], normalised, from token_ids and positions, both int64 [T]."""
        if not isinstance(states, OwnStep):
            raise TypeError(f"a model with its own caches needs an OwnStep, not {type(states).__name__}")
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
        """Return float32 logits [R, vocab] of hidden [R, hidden]."""
        return self._stepper.logits(hidden)

    def _computed(self, call: CacheCall, tokens: Tensor, step: OwnStep) -> Tensor:
        """Compute a call's tokens [B, n], which extends the caches. Return hidden states [B, n, hidden]."""
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


def _index(call: CacheCall, device: torch.device) -> Tensor:
    """Return the row in the step of each token of a call, int64 [B, n]."""
    return torch.tensor(call.firsts, device=device)[:, None] + torch.arange(call.length, device=device)
