"""What was found of a class with caches of its own, and what follows from it for its calls."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.foreign.own.stepper import Calling, Takes
from plimsoll_runtime.models.foreign.own.tree import Path
from plimsoll_runtime.models.spec.own_cache import OwnCache

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
