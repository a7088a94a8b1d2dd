"""The work of a model's steps as linear functions, so that no step walks the ops of a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import NamedTuple

import msgspec

from plimsoll_runtime.engine.work.visible import Visible

PLAIN = ("steps", "tokens", "sequences", "logits", "steps with logits")
"""The first amounts of a step. After them come (tokens, pairs) for each mask, and the experts read for each mixture."""


class Mixture(msgspec.Struct, frozen=True, array_like=True):
    """The number of experts in a layer, and how many of them a row chooses."""

    experts: int
    chosen: int


class Factors(msgspec.Struct, frozen=True, array_like=True):
    """Floating point operations and bytes for one of each amount."""

    flops: tuple[int, ...]
    bytes: tuple[int, ...]


class Work(NamedTuple):
    """Floating point operations and bytes of memory traffic."""

    flops: float
    bytes: float


class WorkModel(msgspec.Struct, frozen=True):
    """The work of a step by kind: the sum over its amounts, each times a factor. See `OpCost` for what counts.

    `masks`: of the attention layers. `mixtures`: sizes of layers with experts. `factors`: by kind.
    """

    masks: tuple[Visible, ...]
    mixtures: tuple[Mixture, ...]
    factors: dict[str, Factors]

    @property
    def amounts(self) -> int:
        """Number of amounts that a step is counted in."""
        return len(PLAIN) + 2 * len(self.masks) + len(self.mixtures)

    def work(self, amounts: Sequence[float]) -> Mapping[str, Work]:
        """Return the work of steps by kind, from the sums of their amounts."""
        return {
            kind: Work(sum(map(mul, amounts, own.flops)), sum(map(mul, amounts, own.bytes)))
            for kind, own in self.factors.items()
        }


def merged(models: Sequence[WorkModel]) -> WorkModel:
    """Return the model of several ranks' work together. All of them run the same steps."""
    masks = tuple(dict.fromkeys(mask for model in models for mask in model.masks))
    mixtures = tuple(dict.fromkeys(mixture for model in models for mixture in model.mixtures))
    kinds = dict.fromkeys(kind for model in models for kind in model.factors)
    whole = WorkModel(masks, mixtures, {})
    return msgspec.structs.replace(
        whole,
        factors={
            kind: Factors(
                _summed(whole, ((model, model.factors[kind].flops) for model in models if kind in model.factors)),
                _summed(whole, ((model, model.factors[kind].bytes) for model in models if kind in model.factors)),
            )
            for kind in kinds
        },
    )


def _summed(whole: WorkModel, parts: Iterable[tuple[WorkModel, tuple[int, ...]]]) -> tuple[int, ...]:
    """Return the sums of factors that belong to the amounts of different models, in the order of `whole`."""
    sums = [0] * whole.amounts
    for model, factors in parts:
        for place, factor in zip(_places(model, whole), factors, strict=True):
            sums[place] += factor
    return tuple(sums)


def _places(model: WorkModel, whole: WorkModel) -> list[int]:
    """Return the index in the amounts of `whole` of each amount of a model."""
    places = list(range(len(PLAIN)))
    for mask in model.masks:
        first = len(PLAIN) + 2 * whole.masks.index(mask)
        places += [first, first + 1]
    after = len(PLAIN) + 2 * len(whole.masks)
    return places + [after + whole.mixtures.index(mixture) for mixture in model.mixtures]
