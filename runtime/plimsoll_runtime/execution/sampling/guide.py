"""What guides one sequence's tokens: a grammar, the budget of its thoughts, or both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plimsoll_kernels.sampling.masks import WORD_BITS
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.structured.matcher import Grammars, Matcher
from plimsoll_runtime.text.reasoning_budget import Thoughts

STRAY = "the token that ended the thought begins the answer as well"


class Guide:
    """Follows one sequence. A grammar holds for the answer proper: within a thought, nothing but the answer's end is
    forbidden to a sequence that has one.

    `matcher`: where it is in its grammar, None without one.
    """

    def __init__(self, matcher: Matcher | None, thoughts: Thoughts | None, ends: Sequence[int]) -> None:
        """`ends` are the tokens that end a text."""
        self.matcher = matcher
        self._thoughts = thoughts
        self._ends = ends
        self._stray = False

    @property
    def error(self) -> str | None:
        """Why there is no next token: its grammar says so when it takes one or is asked for it. None: there is."""
        return STRAY if self._stray else None if self.matcher is None else self.matcher.error

    @property
    def matches(self) -> bool:
        """Whether the grammar says something of the next token."""
        return self.matcher is not None and (self._thoughts is None or self._thoughts.constrains)

    @property
    def limits(self) -> bool:
        """Whether there are tokens that may not be next."""
        return self.matcher is not None or bool(self._thoughts and self._thoughts.forced)

    def take(self, token: int) -> None:
        """The sequence has got a token."""
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
        """The tokens that may be next, as bits: the grammar's own, and then `write`."""
        if self.matcher is not None and self.matches:
            self.matcher.inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.write(mask)

    def write(self, mask: NDArray[np.int32]) -> None:
        """The tokens that may be next, as bits. Where the grammar `matches`, the mask has its own already."""
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
    """What guides a sequence that takes a slot; None where nothing does. Raises ConstraintError."""
    constraint, thought = init.params.constraint, init.params.thought
    if constraint is None and (thought is None or thought.budget is None):
        return None
    matcher = None if constraint is None else grammars.matcher(constraint)
    thoughts = None
    if thought is not None:
        thoughts = Thoughts(thought, grammars.spelled(), constrained=constraint is not None)
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
