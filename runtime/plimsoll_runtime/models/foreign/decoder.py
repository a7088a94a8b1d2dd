"""A decoder whose code is Transformers': its layers call our attention, and it keeps no cache of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.attention import Attention
from plimsoll_runtime.models.foreign.errors import UnservedError
from plimsoll_runtime.models.foreign.halves import Halves
from plimsoll_runtime.models.foreign.interface import Call, connect
from plimsoll_runtime.models.foreign.outline import TransformersOutline
from plimsoll_runtime.models.foreign.skeleton import stored_tensors
from plimsoll_runtime.models.states import States


class TransformersDecoder:
    """See Decoder. All rows of a step are one sequence to the model, each at its own position."""

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
        """token_ids and positions int64 [T] -> final hidden states [T, hidden], normed."""
        self._layers.begin(attention)
        hidden = self._halves.hidden(token_ids, positions)
        self._layers.end()
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab]."""
        return self._halves.logits(hidden)


class _Layers:
    """Each call for attention of a step, in order, is the next layer's of the cache."""

    def __init__(self, outline: TransformersOutline) -> None:
        self._shapes = outline.facts.attention
        self._attention: Attention | None = None
        self._next = 0

    def begin(self, attention: Attention) -> None:
        """A step, or the same once more on another backend."""
        self._attention = attention
        self._next = 0

    def end(self) -> None:
        """Raises UnservedError where the model has left layers out."""
        self._attention = None
        if self._next != len(self._shapes):
            raise UnservedError(f"attended {self._next} times in a step, and {len(self._shapes)} times when asked")

    def attend(self, call: Call) -> Tensor:
        """See Receiver. Raises UnservedError for a call that is not what the model was asked about."""
        layer = self._next
        self._next += 1
        expected = self._shapes[layer] if layer < len(self._shapes) else None
        if self._attention is None or expected is None or call.shape(expected.window) != expected:
            raise UnservedError(f"attends in layer {layer} in another way ({call.shape(call.window)}) than {expected}")
        if call.mask is not None or call.window not in (None, expected.window):
            raise UnservedError(f"masks tokens in layer {layer}, or has another window than {expected.window}")
        return self._attention(layer, *call.rows())[..., : call.value.shape[-1]]
