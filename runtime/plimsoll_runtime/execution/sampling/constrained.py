"""Rows whose tokens a grammar or a thought's end chooses among: their masks are computed beside the forward pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from plimsoll_kernels.sampling.masks import TokenMasks, words_of
from plimsoll_runtime.engine.constraint import ConstraintError
from plimsoll_runtime.engine.plan import SlotInit
from plimsoll_runtime.execution.sampling.ahead import take_forced
from plimsoll_runtime.execution.sampling.guide import Guide, guide_of
from plimsoll_runtime.structured.grammars import Grammars

if TYPE_CHECKING:
    from llguidance import LLExecutor

MOST_THREADS = 8
"""That compute masks: each takes some tens of microseconds."""


class Recorded(NamedTuple):
    """By row: why a sequence cannot go on, and which tokens have to follow the one that was chosen."""

    failed: dict[int, str]
    forced: dict[int, list[int]]


class ConstrainedRows:
    """What guides the sequences in the slots, and the masks of a step's rows.

    Where a row has only one token to choose from, those that have to follow it are found at once, up to `most_forced`:
    no step is needed to choose them. Not where a sequence tells log probabilities, which only a step knows: `_silent`
    are the slots that tell none. `_forced` has such tokens of a step's slots, the chosen one first.

    Nothing is imported or computed, and no thread started, before a sequence with a constraint or a budget comes.
    """

    def __init__(self, vocab_size: int, grammars: Grammars, most_forced: int = 0) -> None:
        self._words = words_of(vocab_size)
        self._grammars = grammars
        self._most_forced = most_forced
        self._silent: set[int] = set()
        self._forced: dict[int, list[int]] = {}
        self._guides: dict[int, Guide] = {}
        self._broken: dict[int, str] = {}
        self._under_way: tuple[list[int], Tensor, Future[None]] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    @property
    def active(self) -> bool:
        """Whether a slot has something that guides it."""
        return bool(self._guides or self._broken)

    def fill(self, init: SlotInit) -> None:
        """A sequence takes a slot, fresh or resumed."""
        try:
            guide = guide_of(init, self._grammars)
        except ConstraintError as error:
            self._broken[init.slot] = str(error)
            return
        if guide is not None:
            self._guides[init.slot] = guide
            if init.params.logprobs is None:
                self._silent.add(init.slot)

    def free(self, slot: int) -> None:
        """A slot is empty again."""
        self._guides.pop(slot, None)
        self._broken.pop(slot, None)
        self._silent.discard(slot)

    def begin(self, slots: Sequence[int]) -> None:
        """Start to compute the masks of the rows that are about to be sampled, in their order."""
        guides = self._guides
        if not guides or not (limited := [slot for slot in slots if slot in guides and guides[slot].limits]):
            return
        bits = torch.empty(len(limited), self._words, dtype=torch.int32)
        self._pool = self._pool or ThreadPoolExecutor(1, "plimsoll-masks")
        self._under_way = limited, bits, self._pool.submit(self._compute, limited, bits)

    def finish(self, slots: Sequence[int], device: torch.device) -> TokenMasks | None:
        """The masks that were begun for these rows, on a device; None where no row has one."""
        if self._under_way is None:
            return None
        limited, bits, done = self._under_way
        self._under_way = None
        done.result()
        rows = {slot: row for row, slot in enumerate(limited)}
        masked = torch.tensor([rows.get(slot, -1) for slot in slots], dtype=torch.int32)
        return TokenMasks(masked.to(device), bits.to(device))

    def record(self, slots: Sequence[int], tokens: Sequence[int]) -> Recorded:
        """Take note of the chosen tokens (-1: none)."""
        failed, forced = {}, {}
        for row, (slot, token) in enumerate(zip(slots, tokens, strict=True)):
            error = self._broken.get(slot)
            if token >= 0 and (guide := self._guides.get(slot)) is not None:
                if slot in self._forced:
                    assert token == self._forced[slot][0], "a token was chosen that the mask forbade"
                    forced[row] = self._forced[slot][1:]
                else:
                    guide.take(token)
                error = guide.error
            if error is not None:
                failed[row] = f"the answer's grammar cannot be followed any further: {error}"
        self._forced.clear()
        return Recorded(failed, forced)

    def _compute(self, slots: list[int], bits: Tensor) -> None:
        guides = [self._guides[slot] for slot in slots]
        matchers = [(guide.matcher.inner, row) for row, guide in enumerate(guides) if guide.matcher and guide.matches]
        if matchers:
            if self._executor is None:
                from llguidance import LLExecutor

                self._executor = LLExecutor(min(MOST_THREADS, max(1, len(os.sched_getaffinity(0)) // 2)))
            self._executor.unsafe_compute_mask_ptr(matchers, bits.data_ptr(), 4 * self._words, len(guides))
        for slot, guide, row in zip(slots, guides, bits.numpy(), strict=True):
            guide.write(row)
            if self._most_forced and slot in self._silent:
                tokens = take_forced(guide, row, self._grammars.ends(), self._most_forced)
                if tokens:
                    self._forced[slot] = tokens
