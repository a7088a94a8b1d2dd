"""Inputs of both probes: generated weights, tokens, a reference pass, and cheap products."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from plimsoll_runtime.models.transformers_code.model_classes import UnservedError

CLOSE = 1e-4
"""Largest difference of equal rows, relative to the largest number: sums may have another order."""
FEWEST = 7
"""Smallest vocabulary that can be probed."""


def tokens_of(config: Any, count: int) -> Tensor:
    """Return `count` token ids, int64, other than the padding token."""
    text = config.get_text_config()
    ids = [i for i in range(min(text.vocab_size, 4 * count)) if i != getattr(text, "pad_token_id", None)]
    if len(ids) < FEWEST:
        raise UnservedError(f"has a vocabulary of {text.vocab_size} tokens, fewer than the {FEWEST} that probing needs")
    return torch.tensor((ids * count)[-count:])


def made_up(wanted: Tensor, generator: torch.Generator) -> Tensor | None:
    """Return random numbers of a trained model's magnitude. The rows of a matrix share them, each shifted by one.

    Returns None for buffers, which the model computes itself.
    """
    if not isinstance(wanted, torch.nn.Parameter):
        return None
    if not wanted.is_floating_point():
        return torch.zeros(wanted.shape, dtype=wanted.dtype)
    if wanted.ndim < 2:
        return (1 + 0.1 * torch.randn(wanted.shape, generator=generator)).to(wanted.dtype)
    shared: Tensor = torch.randn(sum(wanted.shape), generator=generator) * wanted.shape[-1] ** -0.5
    return shared.to(wanted.dtype).as_strided(wanted.shape, (1,) * wanted.ndim)


def whole_pass(model: Any, tokens: Tensor, positions: Tensor | None) -> tuple[str, Tensor, Tensor]:
    """Run the unchanged model on one sequence. Return (name of the submodule that computes hidden states, hidden states
    [T, hidden], float32 logits [T, vocab]).

    Raises UnservedError if there is not exactly one such submodule.
    """
    from transformers import PreTrainedModel

    seen: list[tuple[str, Tensor]] = []
    running: list[str] = []

    def began(module: Any, args: Any, name: str) -> None:
        running.append(name)

    def ended(module: Any, args: Any, output: Any, name: str) -> None:
        running.remove(name)
        if not running:
            seen.append((name, output[0][0]))

    handles = []
    for name, part in model.named_modules():
        if part is not model and isinstance(part, PreTrainedModel):
            handles.append(part.register_forward_pre_hook(lambda m, a, name=name: began(m, a, name)))
            handles.append(part.register_forward_hook(lambda m, a, o, name=name: ended(m, a, o, name)))
    options: dict[str, Any] = {} if positions is None else {"position_ids": positions[None]}
    if "use_cache" in signature(model.forward).parameters:
        options["use_cache"] = False
    found = model(input_ids=tokens[None], return_dict=True, **options)
    for handle in handles:
        handle.remove()
    if len(seen) != 1:
        raise UnservedError(f"has {len(seen)} submodules that return hidden states instead of 1")
    return *seen[0], found.logits[0].float()


def close(one: Tensor, other: Tensor) -> bool:
    """Return whether all numbers differ at most by the rounding of sums in another order (see CLOSE)."""
    return bool((one - other).abs().max() <= CLOSE * other.abs().max())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Transformers' warnings about a model without weights."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class CheapProducts(TorchFunctionMode):
    """Replaces products of rows and a weight by a cheap mixture of each row's numbers, which reads only part of the
    weight.

    As in the real product, rows do not affect each other. `widest`: elements per row of the largest result that has all
    rows.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.widest = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = product(*args, **(kwargs or {})) if func is linear else func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and self._rows in found.shape:
            self.widest = max(self.widest, found.numel() // self._rows)
        return found


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Replace torch's `linear`: input [..., columns], weight [rows, columns], bias [rows] -> [..., rows]."""
    columns = torch.arange(weight.shape[0]) % input.shape[-1]
    found = input[..., columns] * (1 + weight[:, 0]) + input.mean(-1, keepdim=True)
    return found if bias is None else found + bias
