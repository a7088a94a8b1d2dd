"""Choices of tokens by ranks in threads, each of which has a part of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from parallel_support.ranks import ThreadCollectives, on_ranks
from sampling_support.definition import Wish
from torch import Tensor

from plimsoll_kernels.dispatch import Implementation
from plimsoll_runtime.engine.protocol.plan import SlotDraw
from plimsoll_runtime.models.ops.weight import Range
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.choice_rows import DrawnSlots


@dataclass
class CountingCollectives:
    """The sums of one rank, whose sizes are recorded."""

    inner: ThreadCollectives
    sizes: list[int] = field(default_factory=list)
    device = torch.device("cpu")

    def add_up(self, part: Tensor) -> None:
        self.sizes.append(part.nbytes)
        self.inner.add_up(part)


@dataclass(frozen=True)
class Chosen:
    """What the first rank chose: the tokens, the rows that needed all logits, and the bytes of each sum."""

    tokens: list[int]
    left: list[int]
    sizes: list[int]


def draws(wishes: Sequence[Wish]) -> list[SlotDraw]:
    """Return how the tokens of slots 0, 1, ... are drawn."""
    return [
        SlotDraw(slot, wish.temperature, wish.top_k, wish.top_p, wish.min_p, slot, 0, False)
        for slot, wish in enumerate(wishes)
    ]


def chosen(
    logits: Tensor,
    wishes: Sequence[Wish],
    uniforms: Tensor,
    parts: Sequence[Range],
    implementation: Implementation = "auto",
) -> Chosen:
    """Return the choice of ranks with these parts of logits float32 `[R, V]`. All ranks must make the same sums."""
    slots = DrawnSlots(parts)
    for draw in draws(wishes):
        slots.fill(draw)
    rows = slots.rows(tuple(range(len(wishes)))).rows

    def of_rank(group: ThreadCollectives, rank: int) -> Chosen:
        counting = CountingCollectives(group)
        choice = Choice(counting, parts, rank, implementation=implementation)
        first, end = parts[rank]
        own = logits[:, first:end].contiguous()
        choice.begin(rows, 0, 0)
        tokens, left = choice.choose(own, uniforms.numpy())
        whole = choice.gather(own, left.tolist())
        if rank == 0 and left.size:
            assert whole is not None
            assert torch.equal(whole, logits[left.tolist()])
            tokens[left] = choice.sampled(whole, left, uniforms.numpy())
        choice.fail()  # nothing is expected, so that it does nothing
        return Chosen(tokens.tolist(), left.tolist(), counting.sizes)

    first, *others = on_ranks(len(parts), of_rank)
    for other in others:
        assert other.sizes == first.sizes
        assert other.left == first.left
    return first


def cut_at(ends: Sequence[int]) -> list[Range]:
    """Return the parts that end there."""
    return [(first, end) for first, end in zip([0, *ends[:-1]], ends, strict=True)]


def expected_tokens(best: Tensor, tokens: Tensor) -> list[int]:
    """Return the tokens of a whole row; -1 if its largest logit is not finite."""
    found: list[int] = np.where(best.isfinite().numpy(), tokens.numpy(), -1).tolist()
    return found
