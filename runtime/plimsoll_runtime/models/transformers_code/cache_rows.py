"""The caches of a step's rows: which slots share a cache object, and which rows are computed in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from plimsoll_runtime.models.layers.states import Spans
from plimsoll_runtime.models.transformers_code.cache_calls import Findings
from plimsoll_runtime.models.transformers_code.cache_tensors import Axes, Misfit, joined, taken


@dataclass(slots=True, eq=False)
class Stack:
    """A cache with a row for each of these slots, in this order, all of which have so many tokens."""

    slots: list[int]
    cache: Any
    tokens: int


class Rows:
    """The rows of all slots. `axes`: how they lie in caches; None: each has one of its own for good."""

    def __init__(self, axes: Axes | None) -> None:
        self._axes = axes
        self._stacks: dict[int, Stack] = {}

    @property
    def slots(self) -> set[int]:
        """Those that have a row."""
        return set(self._stacks)

    def begin(self, slots: Sequence[int]) -> list[Stack]:
        """Stacks without a token for rows that begin; what their slots had is gone."""
        self.free(slots)
        groups = [[slot] for slot in slots] if self._axes is None else [list(slots)]
        found = [Stack(group, None, 0) for group in groups]
        for stack in found:
            self._keep(stack)
        return found

    def gather(self, slots: Sequence[int]) -> list[Stack]:
        """Stacks of these rows and no others: one, if their caches are of one form. All have equally many tokens."""
        parts = [self._alone(stack, slots) for stack in self._stacks_of(slots)]
        if len(parts) == 1 or self._axes is None:
            return parts
        try:
            cache = joined([part.cache for part in parts], self._axes)
        except Misfit:
            return parts
        whole = Stack([slot for part in parts for slot in part.slots], cache, parts[0].tokens)
        self._keep(whole)
        return [whole]

    def free(self, slots: Iterable[int]) -> None:
        """These slots have no rows any more."""
        gone = set(slots)
        for stack in self._stacks_of(gone):
            left = [slot for slot in stack.slots if slot not in gone]
            if left:
                self._keep(self._some(stack, left))
        for slot in gone:
            self._stacks.pop(slot, None)

    def _stacks_of(self, slots: Iterable[int]) -> list[Stack]:
        return list({id(stack): stack for slot in slots if (stack := self._stacks.get(slot)) is not None}.values())

    def _alone(self, stack: Stack, slots: Sequence[int]) -> Stack:
        """The rows of a stack that are asked for; the others go into one of their own."""
        wanted = [slot for slot in stack.slots if slot in slots]
        others = [slot for slot in stack.slots if slot not in slots]
        if not others:
            return stack
        apart = self._some(stack, wanted)
        self._keep(self._some(stack, others))
        self._keep(apart)
        return apart

    def _some(self, stack: Stack, slots: list[int]) -> Stack:
        """Rows of a stack, copied."""
        if stack.cache is None:
            return Stack(slots, None, stack.tokens)
        assert self._axes is not None, "rows share a cache that nobody knows how to part"
        rows = [stack.slots.index(slot) for slot in slots]
        return Stack(slots, taken(stack.cache, rows, len(stack.slots), self._axes), stack.tokens)

    def _keep(self, stack: Stack) -> None:
        for slot in stack.slots:
            self._stacks[slot] = stack

    def check_integrity(self) -> None:
        """Raises AssertionError where a slot's stack does not have it, or a stack has a slot that is another's."""
        for slot, stack in self._stacks.items():
            assert stack.slots.count(slot) == 1, f"the stack of slot {slot} has it {stack.slots.count(slot)} times"
            for other in stack.slots:
                assert self._stacks.get(other) is stack, f"slot {other} is in a stack that is not its own"
            assert len(stack.slots) == 1 or self._axes is not None, "rows share a cache that nobody knows how to part"


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


@dataclass(frozen=True, slots=True)
class CacheCall:
    """Rows that are computed together. `firsts`: where each one's `length` tokens begin among the rows of the step."""

    slots: list[int]
    firsts: list[int]
    start: int
    length: int


def calls_of(step: OwnStep, found: Findings) -> Iterator[CacheCall]:
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
            yield CacheCall([step.slots[m] for m in part], [firsts[m] for m in part], start, length)


def pieces_of(call: CacheCall, found: Findings) -> Iterator[tuple[int, int]]:
    """(first token, how many) of a call's tokens at a time."""
    size = found.piece(len(call.slots), call.start, call.length)
    for first in range(0, call.length, size):
        yield first, min(size, call.length - first)
