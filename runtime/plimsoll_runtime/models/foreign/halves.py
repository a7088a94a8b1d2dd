"""A causal language model of Transformers in two: tokens to hidden states, and hidden states to logits."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.foreign.errors import UnservedError


class Halves:
    """`base` is the part of `model` that gives hidden states.

    Logits are whatever the model makes of them (its head, scales, soft caps), by its own code: it is run with a base
    that answers with the hidden states at hand.
    """

    def __init__(self, model: Any, base: Any) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self._model = model
        self._base = base
        self._takes = inspect.signature(model.forward).parameters
        self._answer: type[Any] = BaseModelOutputWithPast

    def hidden(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """token_ids and positions int64 [T] -> [T, hidden]."""
        found = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, return_dict=True)
        self.answered(found)
        states: Tensor = found.last_hidden_state
        return states[0]

    def answered(self, output: Any) -> None:
        """What the base answers with is of this kind."""
        self._answer = type(output)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden] -> float32 [R, vocab]."""
        rows = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        calls = 0

        def answer(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return self._answer(last_hidden_state=hidden[None])

        self._base.forward = answer
        try:
            found = self._model(input_ids=rows, return_dict=True, **self._options(rows))
        finally:
            del self._base.forward
        if calls != 1:
            raise UnservedError(f"asks for hidden states {calls} times")
        logits: Tensor = found.logits
        return logits[0].float()

    def _options(self, rows: Tensor) -> dict[str, Any]:
        wanted = {"position_ids": rows, "use_cache": False}
        return {name: value for name, value in wanted.items() if name in self._takes}
