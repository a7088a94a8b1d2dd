"""Flat inputs equal what a loop over tokens gives."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.plan import LAST_CHOSEN, BlockTable, ScheduledSequence, StepPlan
from plimsoll_runtime.execution.inputs import step_inputs

LAST = range(100, 106)


@st.composite
def plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    block_size, groups = draw(st.sampled_from([8, 16])), draw(st.integers(1, 3))
    sequences = []
    for slot in range(draw(st.integers(1, 6))):
        unseen = draw(st.booleans())
        start, length = draw(st.integers(0, 70)), 1 if unseen else draw(st.integers(1, 40))
        blocks = -(-(start + length) // block_size) + draw(st.integers(0, 1))
        firsts = [0, *draw(st.lists(st.integers(0, start // block_size), min_size=groups - 1, max_size=groups - 1))]
        sequences.append(
            ScheduledSequence(
                slot=slot,
                start=start,
                token_ids=[LAST_CHOSEN]
                if unseen
                else draw(st.lists(st.integers(0, 99), min_size=length, max_size=length)),
                tables=[
                    BlockTable(first, draw(st.lists(st.integers(1, 500), min_size=blocks - first, max_size=blocks)))
                    for first in firsts
                ],
                sample=True,
            )
        )
    return StepPlan(sequences), block_size


@given(plans())
def test_every_row(case: tuple[StepPlan, int]) -> None:
    plan, block_size = case
    inputs = step_inputs(plan, block_size, torch.device("cpu"), LAST)
    expected = [
        (LAST[s.slot] if token == LAST_CHOSEN else token, s.start + i)
        for s in plan.sequences
        for i, token in enumerate(s.token_ids)
    ]
    assert list(zip(inputs.token_ids.tolist(), inputs.positions.tolist(), strict=True)) == expected
    assert inputs.batch.longest == max(s.start + len(s.token_ids) for s in plan.sequences)
    assert len(inputs.batch.groups) == len(plan.sequences[0].tables)
    for number, group in enumerate(inputs.batch.groups):
        tables = [s.tables[number] for s in plan.sequences]
        assert group.query_lens == [len(s.token_ids) for s in plan.sequences]
        assert group.block_tables == [table.blocks for table in tables]
        assert group.cells.tolist() == [
            table.blocks[(s.start + i) // block_size - table.first] * block_size + (s.start + i) % block_size
            for s, table in zip(plan.sequences, tables, strict=True)
            for i in range(len(s.token_ids))
        ]
        # What has been given back is missing from the contexts, block by block.
        assert group.context_lens == [
            s.start + len(s.token_ids) - table.first * block_size
            for s, table in zip(plan.sequences, tables, strict=True)
        ]
