"""Calls of a model that keeps its own caches: the kinds of calls that it supports, and calls for several sequences."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime.models.spec.recurrent import OwnCache
from plimsoll_runtime.models.transformers_code.cache_tensors import Path
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError
from plimsoll_runtime.models.transformers_code.skeleton import Halves

CACHES = ("past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""Names of caches in model outputs and of the arguments for them."""


class Takes(Enum):
    """How many tokens of a sequence a call may have.

    Any number (ANY), any number in the sequence's first call and one in later ones (FIRST), or always one (ONE).
    """

    ANY = "any"
    FIRST = "first"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Calling:
    """How to call a model. `base`: the submodule that returns hidden states; `cache`: the name of its cache argument.

    If `cache` is None, each step passes all tokens again. `positions`: whether the model gets them as an argument.
    """

    base: str
    cache: str | None
    positions: bool


class Stepper:
    """Calls `model` in the way that `calling` describes. Before the first token of sequences, their cache is None."""

    def __init__(self, model: Any, calling: Calling) -> None:
        self._base = model.get_submodule(calling.base)
        self.calling = calling
        self._halves = Halves(model, self._base)

    def step(self, tokens: Tensor, start: int, cache: Any) -> tuple[Tensor, Any]:
        """Return hidden states [B, n, H] of tokens int64 [B, n] at positions from `start`, and the cache of the B
        sequences after them.

        The given cache must not be used again.
        """
        if self.calling.cache is None:
            return self._anew(tokens, cache)
        options = {} if cache is None else {self.calling.cache: cache}
        found = self._base(input_ids=tokens, use_cache=True, return_dict=True, **options, **self._at(tokens, start))
        self._halves.answered(found)
        after = getattr(found, self.calling.cache, None)
        if after is None:
            raise UnservedError(f"returns no {self.calling.cache}")
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
        """Return float32 logits [R, vocab] of hidden [R, H]."""
        return self._halves.logits(hidden)


def has(part: Any, argument: str) -> bool:
    """Return whether a module's forward has this argument."""
    return argument in inspect.signature(part.forward).parameters


SCORES_BYTES = 2**28
"""Target limit of a call's attention scores with their copies, in bytes."""
_A_SCORE = 12
"""Most bytes of one score: 4 in the run's dtype, 4 in float32, and 4 after softmax."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of probing a model with its own caches.

    - `takes`: how many tokens a call may have.
    - `axes`: the batch dimension of each tensor of a cache (see `Axes`); None if a call can take only one sequence.
    - `kept`: cache sizes, for elements of two bytes and of four.
    - `widest`: elements per row of the model's largest intermediate result.
    - `heads`: attention heads, for the size of scores.
    """

    calling: Calling
    takes: Takes
    axes: tuple[tuple[Path, int | None], ...] | None
    vocab_size: int
    hidden_size: int
    widest: int
    heads: int
    kept: tuple[OwnCache, ...]

    @property
    def most(self) -> int:
        """Target limit of the number of scores of one head in a call. Each pair of a query and a key has a score."""
        return SCORES_BYTES // (_A_SCORE * self.heads)

    def at_least(self, start: int, length: int) -> int:
        """Return the fewest tokens that a call must compute at once for a sequence's next `length` tokens, after
        `start` others.
        """
        if self.calling.cache is None:
            return start + length
        return length if self.takes is Takes.FIRST and start == 0 else 1

    def together(self, start: int, length: int) -> int:
        """Return how many sequences, each with the next `length` tokens from `start`, one call may have."""
        if self.axes is None:
            return 1
        return max(1, self.most // (self.at_least(start, length) * (start + length)))

    def piece(self, count: int, start: int, length: int) -> int:
        """Return how many of the next `length` tokens of each of `count` sequences one call may have."""
        if self.calling.cache is None or (self.takes is Takes.FIRST and start == 0):
            return length
        if self.takes is not Takes.ANY:
            return 1
        return min(length, max(1, self.most // (count * (start + length))))

    def scores_bytes(self, rows: int, longest: int) -> int:
        """Return the bytes of scores of a step's largest call; 0 if caches do not grow, because then nothing
        attends.
        """
        if not any(each.token for each in self.kept):
            return 0
        anew = self.calling.cache is None
        prompt = self.at_least(0, longest if anew else min(rows, longest)) ** 2
        alone = max(prompt, longest)
        return max(alone * self.heads * _A_SCORE, min(SCORES_BYTES, rows * longest * self.heads * _A_SCORE))
