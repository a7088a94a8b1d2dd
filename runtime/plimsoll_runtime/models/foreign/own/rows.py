"""Which cache holds the row of each slot: rows that go on together share one, and no step has to put it together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.models.foreign.own.stacking import Axes, Misfit, joined, taken


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
