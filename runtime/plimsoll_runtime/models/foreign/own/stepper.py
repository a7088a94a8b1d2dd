"""One step of a model with a cache of its own: tokens of rows that stand at one position, in one call."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.foreign.errors import UnservedError
from plimsoll_runtime.models.foreign.halves import Halves

CACHES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""What outputs call their cache; the argument has the same name."""


class Takes(Enum):
    """How many tokens a call may take: any number, that at the start alone and then one, or always one."""

    ANY = "any"
    FIRST = "first"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Calling:
    """How a model is called. `base`: the part that gives hidden states; `cache`: the argument that its cache is.

    Without one it is given all tokens anew in each step. `positions`: it is told them, or counts by itself.
    """

    base: str
    cache: str | None
    positions: bool


class Stepper:
    """Calls `model` as `calling` says. A cache is None before a row's first token, and then whatever came of it."""

    def __init__(self, model: Any, calling: Calling) -> None:
        self._base = model.get_submodule(calling.base)
        self.calling = calling
        self._halves = Halves(model, self._base)

    def step(self, tokens: Tensor, start: int, cache: Any) -> tuple[Tensor, Any]:
        """tokens int64 [B, n] at positions from `start` -> hidden states [B, n, H], and the rows' cache after them.

        The cache that was given is used up.
        """
        if self.calling.cache is None:
            return self._anew(tokens, cache)
        options = {} if cache is None else {self.calling.cache: cache}
        found = self._base(input_ids=tokens, use_cache=True, return_dict=True, **options, **self._at(tokens, start))
        self._halves.answered(found)
        after = getattr(found, self.calling.cache, None)
        if after is None:
            raise UnservedError(f"gives no {self.calling.cache} back")
        return found.last_hidden_state, after

    def _anew(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        whole = tokens if cache is None else torch.cat([cache["tokens"], tokens], 1)
        options = {"use_cache": False} if has(self._base, "use_cache") else {}
        found = self._base(input_ids=whole, return_dict=True, **options, **self._at(whole, 0))
        self._halves.answered(found)
        return found.last_hidden_state[:, -tokens.shape[1] :], {"tokens": whole}

    def _at(self, tokens: Tensor, start: int) -> dict[str, Tensor]:
        if not self.calling.positions:
            return {}
        rows, count = tokens.shape
        return {"position_ids": torch.arange(start, start + count, device=tokens.device).expand(rows, count)}

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> float32 [R, vocab]."""
        return self._halves.logits(hidden)


def has(part: Any, argument: str) -> bool:
    """Whether a module's forward names this argument."""
    return argument in inspect.signature(part.forward).parameters
