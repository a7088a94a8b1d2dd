"""Rows with a grammar or a reasoning budget: their guides, the masks computed during the forward pass, and forced
tokens.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plimsoll_kernels.sampling.masks import WORD_BITS, TokenMasks, words_of
from plimsoll_runtime.engine.protocol.constraint import ConstraintError
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.structured.matcher import Grammars, Matcher
from plimsoll_runtime.text.reasoning_budget import ReasoningTracker

if TYPE_CHECKING:
    from llguidance import LLExecutor

STRAY = "one token ends the reasoning and begins the output, so the grammar cannot check the beginning"


class Guide:
    """Decides which tokens may come next in one sequence, by its grammar and its reasoning.

    A grammar applies to the output after the reasoning. Within the reasoning of a sequence with a grammar, the tokens
    that end the output and those of `ReasoningMarkers.barred` are forbidden.

    `matcher`: the state in its grammar, None without one.
    """

    def __init__(self, matcher: Matcher | None, thoughts: ReasoningTracker | None, ends: Sequence[int]) -> None:
        """`ends` are the tokens that end a text."""
        self.matcher = matcher
        self._thoughts = thoughts
        self._ends = ends
        self._stray = False

    @property
    def error(self) -> str | None:
        """Why there is no next token, as the grammar reports it after a token or a mask; None if there is one."""
        return STRAY if self._stray else None if self.matcher is None else self.matcher.error

    @property
    def matches(self) -> bool:
        """Whether the grammar constrains the next token."""
        return self.matcher is not None and (self._thoughts is None or self._thoughts.constrains)

    @property
    def limits(self) -> bool:
        """Whether some tokens are forbidden as the next one."""
        return self.matcher is not None or bool(self._thoughts and self._thoughts.forced)

    def take(self, token: int) -> None:
        """Advance by a token of the sequence."""
        thoughts = self._thoughts
        if self.matches and self.matcher is not None and (thoughts is None or token != thoughts.opening):
            self.matcher.take(token)
        if thoughts is None:
            return
        thoughts.take(token)
        if thoughts.stray and self.matcher is not None:
            self._stray = True
        if thoughts.over:
            self._thoughts = None

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write a mask of the tokens that may be next, a bit for each: first the grammar's mask, then the changes of
        `write`.
        """
        if self.matcher is not None and self.matches:
            self.matcher.inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.write(mask)

    def write(self, mask: NDArray[np.int32]) -> None:
        """Change a mask of the tokens that may be next according to the reasoning.

        If the grammar `matches`, the mask already has the grammar's bits; otherwise it is overwritten. Without
        reasoning it is not changed.
        """
        thoughts = self._thoughts
        if thoughts is None:
            return
        if thoughts.forced:
            options = thoughts.forced[0]
            allowed = [token for token in options if _has(mask, token)] if self.matches else options
            mask[:] = 0
            for token in allowed or options:
                _set(mask, token)
        elif not self.matches:
            mask[:] = -1
            for token in (*self._ends, *thoughts.barred):
                mask[token // WORD_BITS] &= ~_bit(token)
        elif (opening := thoughts.opening) is not None:
            _set(mask, opening)


def guide_of(init: SlotInit, grammars: Grammars) -> Guide | None:
    """Return the guide of a sequence that takes a slot; None if it needs none. Raises ConstraintError."""
    constraint, thought = init.context.params.constraint, init.context.params.thought
    if constraint is None and (thought is None or thought.budget is None):
        return None
    matcher = None if constraint is None else grammars.matcher(constraint)
    thoughts = None
    if thought is not None:
        thoughts = ReasoningTracker(thought, grammars.spelled(), constrained=constraint is not None)
    guide = Guide(matcher, thoughts, () if thoughts is None else grammars.ends())
    if thoughts is None and matcher is not None:
        matcher.take_all(init.output_ids)
    else:
        for token in init.output_ids:
            guide.take(token)
    return guide


def _bit(token: int) -> np.int32:
    return np.uint32(1 << token % WORD_BITS).view(np.int32)


def _has(mask: NDArray[np.int32], token: int) -> bool:
    return bool(mask[token // WORD_BITS] & _bit(token))


def _set(mask: NDArray[np.int32], token: int) -> None:
    mask[token // WORD_BITS] |= _bit(token)


def only_token(mask: NDArray[np.int32]) -> int | None:
    """Return the only token of a mask; None if it has several, or none."""
    if np.count_nonzero(mask) != 1:
        return None
    place = int(mask.astype(np.bool_).argmax())
    word = int(mask[place].view(np.uint32))
    return None if word & (word - 1) else place * WORD_BITS + word.bit_length() - 1


def advance_forced_tokens(guide: Guide, mask: NDArray[np.int32], ends: Collection[int], most: int) -> list[int]:
    """Advance a guide by the only token of its mask, and by up to `most` more while there is only one choice.

    Returns these tokens: none if the mask has several. No token follows one of `ends`.
    """
    token, tokens = only_token(mask), list[int]()
    scratch = np.empty_like(mask)
    while token is not None:
        guide.take(token)
        tokens.append(token)
        if token in ends or guide.error is not None or len(tokens) > most or not guide.limits:
            break
        guide.fill(scratch)
        token = only_token(scratch)
    return tokens


MOST_THREADS = 8
"""The most threads of llguidance's pool."""
ROWS_A_THREAD = 16
"""With fewer than two threads' rows, one thread computes all masks, some microseconds each: waking llguidance's pool
and letting it sleep takes longer than 32 masks (0.16 s of processor time in 256 steps for 0.05 s of masks; two cores,
both computing).
"""


class Recorded(NamedTuple):
    """By index of the row: `failed`, why the sequence cannot continue; `forced`, the tokens that must follow the
    sampled one.
    """

    failed: dict[int, str]
    forced: dict[int, list[int]]


class ConstrainedRows:
    """The guides of the sequences in the slots, and the masks of a step's rows.

    If a row has only one token to sample, the tokens that must follow are found in the same step, up to `most_forced`,
    so no step needs to sample them. Sequences with log probabilities are excluded, because only a step computes those:
    `_silent` are the slots without. `_forced` has the forced tokens of a step's slots, the sampled one first. Any other
    sampled token is `_due`: its guide takes it during the next forward pass, if there is one.

    Nothing is imported or computed, and no thread started, before a sequence with a constraint or a budget arrives.
    """

    def __init__(
        self, vocab_size: int, grammars: Grammars, most_forced: int = 0, *, threads: int | None = None
    ) -> None:
        """`threads` compute masks; None: half of the cores, up to `MOST_THREADS`."""
        self._words = words_of(vocab_size)
        self._grammars = grammars
        self._most_forced = most_forced
        self._silent: set[int] = set()
        self._forced: dict[int, list[int]] = {}
        self._due: dict[int, int] = {}
        self._guides: dict[int, Guide] = {}
        self._broken: dict[int, str] = {}
        self._under_way: Future[TokenMasks | None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None
        self._threads = threads or min(MOST_THREADS, len(os.sched_getaffinity(0)) // 2)

    @property
    def active(self) -> bool:
        """Whether a slot has a guide."""
        return bool(self._guides or self._broken)

    def fill(self, init: SlotInit) -> None:
        """Create the guide of a sequence, new or resumed, that takes a slot."""
        try:
            guide = guide_of(init, self._grammars)
        except ConstraintError as error:
            self._broken[init.slot] = str(error)
            return
        if guide is not None:
            self._guides[init.slot] = guide
            if init.context.params.logprobs is None:
                self._silent.add(init.slot)

    def free(self, slot: int) -> None:
        """Forget the guide of a slot, whose sequence has left it."""
        guide = self._guides.pop(slot, None)
        if guide is not None and guide.matcher is not None:
            guide.matcher.leave()
        self._due.pop(slot, None)
        self._broken.pop(slot, None)
        self._silent.discard(slot)

    def begin(self, slots: Sequence[int]) -> None:
        """Start to compute the masks of the rows that are about to be sampled, in order; `finish` returns them.

        Does nothing if no slot has a guide.
        """
        if self._guides and slots:
            self._pool = self._pool or ThreadPoolExecutor(1, "plimsoll-masks")
            self._under_way = self._pool.submit(self._masks, slots)

    def finish(self, device: torch.device) -> TokenMasks | None:
        """Return the masks that `begin` started, on a device; None if no row has one."""
        if self._under_way is None:
            return None
        found = self._under_way.result()
        self._under_way = None
        return (
            None
            if found is None
            else TokenMasks(to_device(found.masked.numpy(), device), to_device(found.bits.numpy(), device))
        )

    def record(self, slots: Sequence[int], tokens: Sequence[int]) -> Recorded:
        """Record the sampled tokens (-1: none). Return the errors of rows and the tokens that must follow."""
        failed, forced = {}, {}
        for row, (slot, token) in enumerate(zip(slots, tokens, strict=True)):
            error = self._broken.get(slot)
            if token >= 0 and (guide := self._guides.get(slot)) is not None:
                if slot in self._forced:
                    assert token == self._forced[slot][0], "a token was sampled that the mask forbids"
                    forced[row] = self._forced[slot][1:]
                else:
                    self._due[slot] = token
                error = guide.error
            if error is not None:
                failed[row] = f"no token can continue the output in its grammar: {error}"
        self._forced.clear()
        return Recorded(failed, forced)

    def break_off(self) -> None:
        """Discard the step that `begin` started. The caller frees its slots next, because their guides may be ahead of
        them.
        """
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
        self._forced.clear()

    def _masks(self, slots: Sequence[int]) -> TokenMasks | None:
        """Compute the masks of these slots, after their guides took the tokens due. A guide in error has none: see
        `record`.
        """
        for slot, token in self._due.items():
            self._guides[slot].take(token)
        self._due.clear()
        masked, limited = [-1] * len(slots), list[tuple[int, Guide]]()
        for row, slot in enumerate(slots):
            guide = self._guides.get(slot)
            if guide is not None and guide.limits and guide.error is None:
                masked[row] = len(limited)
                limited.append((slot, guide))
        if not limited:
            return None
        bits = torch.empty(len(limited), self._words, dtype=torch.int32)
        self._compute(limited, bits)
        return TokenMasks(torch.tensor(masked, dtype=torch.int32), bits)

    def _compute(self, limited: Sequence[tuple[int, Guide]], bits: Tensor) -> None:
        matchers = [
            (guide.matcher.inner, row) for row, (_, guide) in enumerate(limited) if guide.matcher and guide.matches
        ]
        place, row_bytes = bits.data_ptr(), 4 * self._words
        if min(self._threads, len(matchers) // ROWS_A_THREAD) > 1:
            self._shared().unsafe_compute_mask_ptr(matchers, place, row_bytes, len(limited))
        else:
            for matcher, row in matchers:
                matcher.unsafe_compute_mask_ptr(place + row * row_bytes, row_bytes)
        for (slot, guide), row in zip(limited, bits.numpy(), strict=True):
            guide.write(row)
            if self._most_forced and slot in self._silent:
                tokens = advance_forced_tokens(guide, row, self._grammars.ends(), self._most_forced)
                if tokens:
                    self._forced[slot] = tokens

    def _shared(self) -> LLExecutor:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(self._threads)
        return self._executor
