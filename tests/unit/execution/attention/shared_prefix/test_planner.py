"""A plan is computed again only after a change, and never contains blocks that are not shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.execution.attention.shared_prefix.grouping import MOST_GROUPS, SharedPrefix, Worth
from plimsoll_runtime.execution.attention.shared_prefix.planner import PrefixPlan, PrefixPlanner, TableRows

BLOCK, WIDTH = 64, 32
WORTH = Worth(token=2.0**20, partial=2.0**10, members=16)


@dataclass
class Rows:
    """Slots' tables in rows of one array; a block's number depends on its contents and all before it."""

    slots: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    blocks: np.ndarray[Any, np.dtype[np.int32]] = field(default_factory=lambda: np.zeros(WIDTH * 8, dtype=np.int32))
    fresh: Any = field(default_factory=lambda: count(1000))

    def put(self, slot: int, prefix: list[int], own: int) -> None:
        """Add a sequence of some shared blocks and `own` tokens of its own."""
        table = [*prefix, *(next(self.fresh) for _ in range(-(-own // BLOCK)))]
        self.slots[slot] = (table, len(prefix) * BLOCK + own)
        self.blocks[slot * WIDTH :][: len(table)] = table

    def grow(self) -> None:
        for slot, (table, context) in list(self.slots.items()):
            if context % BLOCK == 0:
                table.append(next(self.fresh))
                self.blocks[slot * WIDTH + len(table) - 1] = table[-1]
            self.slots[slot] = (table, context + 1)

    def rows(self, order: list[int] | None = None, rows: dict[int, int] | None = None) -> TableRows:
        chosen = list(self.slots) if order is None else order
        lengths = [(rows or {}).get(slot, 1) for slot in chosen]
        contexts = [self.slots[slot][1] for slot in chosen]
        parts = (lengths, contexts, [slot * WIDTH for slot in chosen])
        query_lens, context_lens, begins = (np.array(part, dtype=np.int64) for part in parts)
        return TableRows(query_lens, context_lens, begins, self.blocks)


SYSTEM, OTHER = [1, 2, 3, 4], [11, 12, 13]


@pytest.fixture
def three() -> Rows:
    made = Rows()
    for slot in range(3):
        made.put(slot, SYSTEM, 5 + slot)
    return made


def test_steady_decoding_looks_once(three: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = PrefixPlanner(WORTH, BLOCK)
    plan = planner.plan(three.rows())
    assert plan.groups == (SharedPrefix((0, 1, 2), 4),)
    monkeypatch.setattr(PrefixPlanner, "_looked_at", lambda *arguments: pytest.fail("it has looked already"))
    for _ in range(3 * BLOCK):
        three.grow()
        assert planner.plan(three.rows()) is plan


def test_whoever_comes_or_goes_is_seen(three: Rows) -> None:
    planner = PrefixPlanner(WORTH, BLOCK)
    planner.plan(three.rows())
    three.put(3, SYSTEM, 9)
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 1, 2, 3), 4),)
    three.put(1, OTHER, 9)  # another one in the same slot
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 2, 3), 4),)
    assert planner.plan(three.rows([3, 1, 0])).groups == (SharedPrefix((0, 2), 4),)
    three.put(1, SYSTEM, 9)
    assert planner.plan(three.rows([3, 1, 0])).groups == (SharedPrefix((0, 1, 2), 4),)


def test_chunks_share_nothing(three: Rows) -> None:
    planner = PrefixPlanner(WORTH, BLOCK)
    assert planner.plan(three.rows(rows={1: 2})).groups == (SharedPrefix((0, 2), 4),)
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 1, 2), 4),)


def test_a_block_that_is_merged_makes_a_prefix_longer(three: Rows) -> None:
    """Two sequences that computed a prompt at the same time have separate last blocks until the step is over."""
    planner = PrefixPlanner(WORTH, BLOCK)
    three.slots.clear()
    for slot in range(2):
        three.put(slot, SYSTEM, 2 * BLOCK)
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 1), 4),)
    three.blocks[WIDTH + 4] = three.blocks[4]
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 1), 5),)


def test_the_own_token_is_never_shared(three: Rows) -> None:
    three.slots = {slot: (table, 4 * BLOCK) for slot, (table, _) in three.slots.items()}
    assert PrefixPlanner(WORTH, BLOCK).plan(three.rows()).groups == (SharedPrefix((0, 1, 2), 3),)


def test_what_is_out_of_a_window_is_not_shared(three: Rows) -> None:
    planner = PrefixPlanner(Worth(WORTH.token, WORTH.partial, WORTH.members, seen=4 * BLOCK + 7), BLOCK)
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 1, 2), 4),)
    three.grow()
    assert planner.plan(three.rows()).groups == (SharedPrefix((0, 1), 4),)


def test_fewer_numbers_than_before() -> None:
    """Tables that are rebuilt for each step take the memory of earlier ones."""
    planner, made = PrefixPlanner(WORTH, BLOCK), Rows()
    for slot in range(2):
        made.put(slot, SYSTEM, 5)
    assert planner.plan(made.rows()).groups
    made.blocks = made.blocks[: WIDTH + 1].copy()
    made.slots = {slot: (table[:1], 5) for slot, (table, _) in made.slots.items()}
    assert planner.plan(made.rows()).groups == ()


@given(st.data())
def test_what_is_said_is_so(data: st.DataObject) -> None:
    """Over steps in which slots are reused and sequences grow, in any order."""
    planner, made = PrefixPlanner(WORTH, BLOCK), Rows()
    prefixes = [[], SYSTEM, SYSTEM[:2], OTHER, [*SYSTEM, 21, 22], [*OTHER, 31]]
    for _ in range(data.draw(st.integers(1, 8))):
        for slot in data.draw(st.sets(st.integers(0, 5), max_size=3)) or ({0} if not made.slots else set()):
            made.put(slot, data.draw(st.sampled_from(prefixes)), data.draw(st.integers(1, 2 * BLOCK)))
        order = data.draw(st.permutations(list(made.slots)))
        plan = planner.plan(made.rows(order))
        for group in plan.groups:
            members = [made.slots[order[member]] for member in group.members]
            assert len({tuple(table[: group.blocks]) for table, _ in members}) == 1
            assert all(context > group.blocks * BLOCK for _, context in members)
        made.grow()


def test_numbers_of_a_batch_that_is_filled_up() -> None:
    plan = PrefixPlan((SharedPrefix((0, 3), 2), SharedPrefix((1, 2, 4), 5)), sequences=6, block_size=16)
    numbers = plan.numbers(8).tolist()
    assert numbers[:8] == [0, 3, 1, 2, 4, 0, 0, 0]
    assert numbers[8:16] == [32, 80, 80, 32, 80, 0, 0, 0]
    assert numbers[16:] == [0, 2, *[5] * (MOST_GROUPS - 1)]
    tables = plan.tables(torch.device("cpu"))
    assert tables.members.tolist() == [0, 3, 1, 2, 4, 0]
    assert tables.shared.tolist() == [32, 80, 80, 32, 80, 0]
    assert tables.starts.tolist() == numbers[16:]
    assert {tensor.dtype for tensor in (tables.members, tables.shared, tables.starts)} == {torch.int32}
