"""A model of Transformers without its weights, and how they are put into it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.foreign.errors import UnservedError
from plimsoll_runtime.models.foreign.interface import NAME, register

TensorOf = Callable[[str, Tensor], Tensor | None]
"""The tensor of a name, with the shape and dtype of the one that is passed in, which has no memory. None: leave it."""


def skeleton(kind: type[Any], config: Any, dtype: torch.dtype, *, attention: str | None = NAME, **options: Any) -> Any:
    """A model on torch's device "meta": shapes and code, no numbers. `attention` None: what its class has."""
    register()
    with torch.device("meta"):
        model = kind._from_config(copy.deepcopy(config), dtype=dtype, attn_implementation=attention, **options)
    return model.eval()


def stored_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that a checkpoint holds, each once, whatever shares it."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        kept = {k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set}
        for key, tensor in (*module._parameters.items(), *kept.items()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{name}.{key}".lstrip("."), tensor


def put(model: Any, tensor_of: TensorOf) -> None:
    """Give a model other tensors in the place of those that a checkpoint holds, one after the other."""
    places: dict[int, list[tuple[dict[str, Tensor | None], str]]] = defaultdict(list)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                places[id(tensor)].append((tensors, key))
    found = list(stored_tensors(model))[::-1]
    while found:  # so that each of them is free once another is in its place
        name, tensor = found.pop()
        given = tensor_of(name, tensor)
        if given is None:
            continue
        made = _initialised(tensor, given)
        for tensors, key in places[id(tensor)]:
            tensors[key] = made


def fill(model: Any, tensor_of: TensorOf) -> None:
    """Give a skeleton its tensors; what is computed anyway (rope's frequencies), or left out, it computes as after any
    load.

    Raises UnservedError for a model that keeps tensors where nobody finds them.
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
                raise UnservedError(f"keeps a tensor that is no weight and no buffer ({name}.{key})")


def _initialised(wanted: Tensor, tensor: Tensor) -> Tensor:
    """Marked, so that Transformers leaves it as it is."""
    made = torch.nn.Parameter(tensor, requires_grad=False) if isinstance(wanted, torch.nn.Parameter) else tensor
    made._is_hf_initialized = True  # type: ignore[attr-defined]
    return made
