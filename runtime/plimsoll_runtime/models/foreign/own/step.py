"""A step of sequences with caches of their own: which of them are one call, and how many of their tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from plimsoll_runtime.models.foreign.own.findings import Findings
from plimsoll_runtime.models.foreign.own.rows import Rows
from plimsoll_runtime.models.spans import Spans


@dataclass(frozen=True, slots=True)
class OwnStep:
    """The sequences of a step: each one's slot, its first position in the step, how many rows it has there.

    It stands where other decoders have `States`, of which it has none.
    """

    slots: Sequence[int]
    starts: Sequence[int]
    spans: Spans
    rows: Rows

    def read(self, index: int) -> Tensor:
        """See States. Always raises TypeError."""
        raise TypeError("sequences have caches of their own, and no states that could be read")

    def write(self, index: int, states: Tensor) -> None:
        """See States. Always raises TypeError."""
        raise TypeError("sequences have caches of their own, and no states that could be written")

    def commit(self) -> None:
        """The pass is over: what it has made of the caches lies there already."""


@dataclass(frozen=True, slots=True)
class Call:
    """Rows that are computed together. `firsts`: where each one's `length` tokens begin among the rows of the step."""

    slots: list[int]
    firsts: list[int]
    start: int
    length: int


def calls_of(step: OwnStep, found: Findings) -> Iterator[Call]:
    """Each sequence in one call, in order; with those that stand where it stands and have as many tokens, if it may."""
    groups: dict[tuple[int, int], list[int]] = {}
    first, firsts = 0, []
    for index, (start, length) in enumerate(zip(step.starts, step.spans.lengths, strict=True)):
        groups.setdefault((start, length), []).append(index)
        firsts.append(first)
        first += length
    for (start, length), members in groups.items():
        size = found.together(start, length)
        for i in range(0, len(members), size):
            part = members[i : i + size]
            yield Call([step.slots[m] for m in part], [firsts[m] for m in part], start, length)


def pieces_of(call: Call, found: Findings) -> Iterator[tuple[int, int]]:
    """(first token, how many) of a call's tokens at a time."""
    size = found.piece(len(call.slots), call.start, call.length)
    for first in range(0, call.length, size):
        yield first, min(size, call.length - first)
