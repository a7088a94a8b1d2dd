"""Calls of a model that keeps its own caches: which calls it can take, and one call over rows at one position."""

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


SCORES_BYTES = 2**28
"""Scores, with their copies, that a call should make at most: for each row and each token that it attends to."""
_A_SCORE = 12
"""Bytes: in the run's dtype, in float32, and their softmax, at most."""


@dataclass(frozen=True, slots=True)
class Findings:
    """`takes`: how many tokens a call may have. `axes`: how rows lie in a cache, where one call can take several; else
    None. `kept`: what caches take, in runs of elements of two bytes and of four. `widest`: elements a row of its
    largest result; `heads` a row has scores of, where it attends.
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
        """Scores of a head that a call should make at most."""
        return SCORES_BYTES // (_A_SCORE * self.heads)

    def at_least(self, start: int, length: int) -> int:
        """Rows that a call for a sequence's next `length` tokens computes at once, however it is cut."""
        if self.calling.cache is None:
            return start + length
        return length if self.takes is Takes.FIRST and start == 0 else 1

    def together(self, start: int, length: int) -> int:
        """How many sequences that go on there, with so many tokens, one call may have."""
        if self.axes is None:
            return 1
        return max(1, self.most // (self.at_least(start, length) * (start + length)))

    def piece(self, count: int, start: int, length: int) -> int:
        """How many of their tokens `count` sequences may have in a call."""
        if self.calling.cache is None or (self.takes is Takes.FIRST and start == 0):
            return length
        if self.takes is not Takes.ANY:
            return 1
        return min(length, max(1, self.most // (count * (start + length))))

    def scores_bytes(self, rows: int, longest: int) -> int:
        """Bytes that the scores of a step's largest call take; none where caches do not grow, for nothing attends."""
        if not any(each.token for each in self.kept):
            return 0
        anew = self.calling.cache is None
        prompt = self.at_least(0, longest if anew else min(rows, longest)) ** 2
        alone = max(prompt, longest)
        return max(alone * self.heads * _A_SCORE, min(SCORES_BYTES, rows * longest * self.heads * _A_SCORE))
