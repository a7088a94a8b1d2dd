"""Rows that share caches, join, split, begin and end: each keeps its own tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_runtime.models.transformers_code.cache_rows import Rows, Stack

AXES = {("seen",): 0, ("turned",): 1}
SLOTS = range(6)


def append(stack: Stack, tokens: dict[int, int]) -> None:
    """Append tokens to a cache of all tokens in two tensors, as a model does."""
    column = torch.tensor([[tokens[slot]] for slot in stack.slots])
    if stack.cache is None:
        stack.cache = {"seen": column, "turned": column.T.clone(), "flags": [True]}
    else:
        stack.cache["seen"] = torch.cat([stack.cache["seen"], column], 1)
        stack.cache["turned"] = torch.cat([stack.cache["turned"], column.T], 0)
    stack.tokens += 1


class RowsMachine(RuleBasedStateMachine):
    """Rows against a list of tokens for each slot."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Rows(AXES)
        self.expected: dict[int, list[int]] = {}
        self.next = 0

    def compute(self, slots: list[int], stacks: list[Stack]) -> None:
        assert sorted(slot for stack in stacks for slot in stack.slots) == sorted(slots)
        tokens = {slot: self.next + i for i, slot in enumerate(slots)}
        self.next += len(slots)
        for stack in stacks:
            append(stack, tokens)
        for slot in slots:
            self.expected[slot].append(tokens[slot])

    @rule(slots=st.lists(st.sampled_from(SLOTS), min_size=1, unique=True))
    def begin(self, slots: list[int]) -> None:
        self.expected.update({slot: [] for slot in slots})
        self.compute(slots, self.rows.begin(slots))

    @rule(slots=st.lists(st.sampled_from(SLOTS), min_size=1, unique=True))
    def go_on(self, slots: list[int]) -> None:
        running = [slot for slot in slots if slot in self.expected]
        for length in {len(self.expected[slot]) for slot in running}:
            alike = [slot for slot in running if len(self.expected[slot]) == length]
            stacks = self.rows.gather(alike)
            assert len(stacks) == 1
            self.compute(alike, stacks)

    @rule(slots=st.sets(st.sampled_from(SLOTS)))
    def free(self, slots: set[int]) -> None:
        self.rows.free(slots)
        for slot in slots:
            self.expected.pop(slot, None)

    @invariant()
    def every_row_is_its_own(self) -> None:
        self.rows.check_integrity()
        assert self.rows.slots == set(self.expected)
        for slot, tokens in self.expected.items():
            [stack] = self.rows._stacks_of([slot])
            row = stack.slots.index(slot)
            assert stack.tokens == len(tokens)
            assert stack.cache["seen"][row].tolist() == tokens
            assert stack.cache["turned"][:, row].tolist() == tokens


TestRows = RowsMachine.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.sampled_from(SLOTS), min_size=2, max_size=4, unique=True))
def test_rows_that_cannot_be_stacked_have_caches_of_their_own(slots: list[int]) -> None:
    rows = Rows(None)
    stacks = rows.begin(slots)
    assert [stack.slots for stack in stacks] == [[slot] for slot in slots]
    for stack in stacks:
        append(stack, dict.fromkeys(slots, 1))
    assert rows.gather(slots) == stacks
    rows.free(slots[:1])
    assert rows.slots == set(slots[1:])
    rows.check_integrity()


def test_rows_whose_caches_differ_in_form_stay_apart() -> None:
    rows = Rows(AXES)
    for slot, flag in ((0, True), (1, False)):
        [stack] = rows.begin([slot])
        append(stack, {slot: slot})
        stack.cache["flags"] = [flag]
    assert [stack.slots for stack in rows.gather([0, 1])] == [[0], [1]]


def test_what_goes_on_together_is_not_copied() -> None:
    rows = Rows(AXES)
    [stack] = rows.begin([3, 1])
    append(stack, {3: 30, 1: 10})
    cache: Any = stack.cache
    assert rows.gather([1, 3])[0].cache is cache


def test_a_lost_row_is_noticed() -> None:
    rows = Rows(AXES)
    rows.begin([0, 1])
    del rows._stacks[1]
    with pytest.raises(AssertionError, match="slot 1 is in the stack of another slot"):
        rows.check_integrity()
