"""Cache objects of sequences: which slots share a cache object, and which sequences of a step share a call."""

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
    """A cache object with a batch row for each of these slots, in this order. All rows have `tokens` tokens."""

    slots: list[int]
    cache: Any
    tokens: int


class Rows:
    """The caches of all slots. `axes`: the batch dimension of each tensor; None: each slot keeps a separate cache."""

    def __init__(self, axes: Axes | None) -> None:
        self._axes = axes
        self._stacks: dict[int, Stack] = {}

    @property
    def slots(self) -> set[int]:
        """Slots that have a cache."""
        return set(self._stacks)

    def begin(self, slots: Sequence[int]) -> list[Stack]:
        """Drop the caches of these slots. Return empty stacks for new sequences in them.

        It is one stack for all slots; if `axes` is None, one for each.
        """
        self.free(slots)
        groups = [[slot] for slot in slots] if self._axes is None else [list(slots)]
        found = [Stack(group, None, 0) for group in groups]
        for stack in found:
            self._keep(stack)
        return found

    def gather(self, slots: Sequence[int]) -> list[Stack]:
        """Return stacks with exactly the rows of these slots: a single one if their caches can be joined.

        All rows must have equally many tokens.
        """
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
        """Drop the caches of these slots."""
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
        """Split a stack so that one contains only requested rows; return that one."""
        wanted = [slot for slot in stack.slots if slot in slots]
        others = [slot for slot in stack.slots if slot not in slots]
        if not others:
            return stack
        apart = self._some(stack, wanted)
        self._keep(self._some(stack, others))
        self._keep(apart)
        return apart

    def _some(self, stack: Stack, slots: list[int]) -> Stack:
        """Return a copy of some rows of a stack."""
        if stack.cache is None:
            return Stack(slots, None, stack.tokens)
        assert self._axes is not None, "rows share a cache without known axes"
        rows = [stack.slots.index(slot) for slot in slots]
        return Stack(slots, taken(stack.cache, rows, len(stack.slots), self._axes), stack.tokens)

    def _keep(self, stack: Stack) -> None:
        for slot in stack.slots:
            self._stacks[slot] = stack

    def check_integrity(self) -> None:
        """Raise AssertionError if the slots and stacks are inconsistent."""
        for slot, stack in self._stacks.items():
            assert stack.slots.count(slot) == 1, (
                f"the stack of slot {slot} contains the slot {stack.slots.count(slot)} times"
            )
            for other in stack.slots:
                assert self._stacks.get(other) is stack, f"slot {other} is in the stack of another slot"
            assert len(stack.slots) == 1 or self._axes is not None, "rows share a cache without known axes"


@dataclass(frozen=True, slots=True)
class OwnStep:
    """The sequences of a step: their slots, first positions (`starts`) and numbers of rows (`spans`). `rows` has all
    caches.

    It is passed instead of `States`, but has no states to read or write.
    """

    slots: Sequence[int]
    starts: Sequence[int]
    spans: Spans
    rows: Rows

    def read(self, index: int) -> Tensor:
        """Raise TypeError: there are no states."""
        raise TypeError("sequences have their own caches and no states to read")

    def write(self, index: int, states: Tensor) -> None:
        """Raise TypeError: there are no states."""
        raise TypeError("sequences have their own caches and no states to write")


@dataclass(frozen=True, slots=True)
class CacheCall:
    """Sequences that are computed together: the `length` tokens of each at positions from `start`.

    `firsts`: the index of each sequence's first token among the rows of the step.
    """

    slots: list[int]
    firsts: list[int]
    start: int
    length: int


def calls_of(step: OwnStep, found: Findings) -> Iterator[CacheCall]:
    """Yield calls that cover all sequences. Sequences at one position with equally many tokens share a call if
    possible.
    """
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
    """Yield the pieces into which the model or memory requires to split a call.

    A piece is (index of its first token among the call's `length` tokens, number of tokens).
    """
    size = found.piece(len(call.slots), call.start, call.length)
    for first in range(0, call.length, size):
        yield first, min(size, call.length - first)
