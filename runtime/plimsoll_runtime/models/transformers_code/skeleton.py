"""A Transformers model without weights, functions that fill it, and its two halves: hidden states and logits."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.transformers_code.attention_interface import NAME, register
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError

TensorOf = Callable[[str, Tensor], Tensor | None]
"""Returns the tensor for a name, with the shape and dtype of the given empty one; None leaves it unchanged."""


def skeleton(kind: type[Any], config: Any, dtype: torch.dtype, *, attention: str | None = NAME, **options: Any) -> Any:
    """Return a model on torch's device "meta", without numbers. `attention` None: the class's default."""
    register()
    with torch.device("meta"):
        model = kind._from_config(copy.deepcopy(config), dtype=dtype, attn_implementation=attention, **options)
    return model.eval()


def stored_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers that a checkpoint has, each once, even if modules share it."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        kept = {k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set}
        for key, tensor in (*module._parameters.items(), *kept.items()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{name}.{key}".lstrip("."), tensor


def put(model: Any, tensor_of: TensorOf) -> None:
    """Replace a model's checkpoint tensors by those that `tensor_of` returns, one after the other."""
    places: dict[int, list[tuple[dict[str, Tensor | None], str]]] = defaultdict(list)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                places[id(tensor)].append((tensors, key))
    found = list(stored_tensors(model))[::-1]
    while found:  # reversed and popped, so that each tensor is freed once it is replaced
        name, tensor = found.pop()
        given = tensor_of(name, tensor)
        if given is None:
            continue
        made = _initialised(tensor, given)
        for tensors, key in places[id(tensor)]:
            tensors[key] = made


def fill(model: Any, tensor_of: TensorOf) -> None:
    """Fill a skeleton with tensors. The model computes other buffers (RoPE frequencies) as after any load.

    Raises UnservedError if the model keeps a tensor that is neither parameter nor buffer.
    """
    put(model, tensor_of)
    for module in model.modules():
        for key, tensor in module._buffers.items():
            if tensor is not None and tensor.is_meta:
                module._buffers[key] = torch.zeros_like(tensor, device="cpu")
    model.initialize_weights()
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                raise UnservedError(f"keeps a tensor that is neither a parameter nor a buffer ({name}.{key})")


def _initialised(wanted: Tensor, tensor: Tensor) -> Tensor:
    """Mark a tensor as initialised, so that Transformers does not overwrite it."""
    made = torch.nn.Parameter(tensor, requires_grad=False) if isinstance(wanted, torch.nn.Parameter) else tensor
    made._is_hf_initialized = True  # type: ignore[attr-defined]
    return made


class Halves:
    """Splits a model at `base`, the submodule that returns hidden states.

    Logits are computed by the model's own code (head, scales, soft caps): it runs with a base that returns the given
    hidden states.
    """

    def __init__(self, model: Any, base: Any) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        self._model = model
        self._base = base
        self._takes = inspect.signature(model.forward).parameters
        self._answer: type[Any] = BaseModelOutputWithPast

    def hidden(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states [T, hidden] of token_ids and positions, both int64 [T]."""
        found = self._base(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, return_dict=True)
        self.answered(found)
        states: Tensor = found.last_hidden_state
        return states[0]

    def answered(self, output: Any) -> None:
        """Remember the class of the base's output, for `logits`."""
        self._answer = type(output)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [R, vocab] of hidden [R, hidden]."""
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
            raise UnservedError(f"calls its base model {calls} times for logits instead of once")
        logits: Tensor = found.logits
        return logits[0].float()

    def _options(self, rows: Tensor) -> dict[str, Any]:
        wanted = {"position_ids": rows, "use_cache": False}
        return {name: value for name, value in wanted.items() if name in self._takes}
