"""Flat inputs equal those of a loop over tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, ScheduledSequence, SequenceOutput, StepPlan, TableChange
from plimsoll_runtime.execution.attention.base import gathered
from plimsoll_runtime.execution.inputs.batch_state import BatchState, step_inputs
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.step_rows import StepRows

SLOTS, BLOCKS = 6, 501
LAST = range(100, 100 + SLOTS)
CPU = torch.device("cpu")


@st.composite
def plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    """Draw a plan of new sequences, whose tables start at different blocks in each group."""
    block_size, groups = draw(st.sampled_from([8, 16])), draw(st.integers(1, 3))
    sequences = []
    for slot in draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, SLOTS))]:
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
                changes=[
                    TableChange(
                        group,
                        first,
                        first,
                        draw(st.lists(st.integers(1, BLOCKS - 1), min_size=blocks - first, max_size=blocks)),
                    )
                    for group, first in enumerate(firsts)
                ],
                sample=True,
            )
        )
    return StepPlan(sequences), block_size


@given(case=plans(), more=st.integers(0, 30))
def test_rows_of_nobody_behind(case: tuple[StepPlan, int], more: int) -> None:
    """Padding has token 0 at position 0, and no cell."""
    plan, block_size = case
    device = DeviceState(SLOTS, len(plan.sequences[0].changes), BLOCKS, 60, CPU)
    device.record(torch.arange(SLOTS), torch.tensor(LAST))
    device.begin(plan)
    device.upload_buffer.start_step()
    rows = StepRows.of(plan, device, block_size)
    plain, wide = rows.inputs(), rows.inputs(rows.known.size + more)
    for own, wider in ((plain.token_ids, wide.token_ids), (plain.positions, wide.positions)):
        assert wider.tolist() == [*own.tolist(), *[0] * more]
    assert torch.equal(plain.batch.cells, wide.batch.cells)


def test_a_table_that_is_too_short() -> None:
    device = DeviceState(SLOTS, 1, BLOCKS, 60, CPU)
    plan = StepPlan([ScheduledSequence(2, 7, [1, 2], [TableChange(0, 0, 0, [5])], sample=True)])
    device.begin(plan)
    with pytest.raises(ValueError, match="9 tokens but 1 blocks of 8"):
        _ = StepRows.of(plan, device, 8).groups


@pytest.mark.parametrize("unseen", [False, True])
@given(case=plans())
def test_every_row(case: tuple[StepPlan, int], unseen: bool) -> None:
    """With sampled tokens that the host has, and with some that are only on the device."""
    plan, block_size = case
    groups = len(plan.sequences[0].changes)
    if unseen:
        device = DeviceState(SLOTS, groups, BLOCKS, 60, CPU)
        device.begin(plan)
        device.record(torch.arange(SLOTS), torch.tensor(LAST))
        device.upload_buffer.start_step()
        inputs = StepRows.of(plan, device, block_size).inputs()
        device.check_integrity()
    else:
        state = BatchState(SLOTS, groups, BLOCKS)
        state.record(range(SLOTS), [SequenceOutput(token) for token in LAST])
        state.begin(plan)
        inputs = step_inputs(plan, state, block_size)
    assert list(inputs.slots) == [s.slot for s in plan.sequences]
    expected = [
        (LAST[s.slot] if token == LAST_CHOSEN else token, s.start + i)
        for s in plan.sequences
        for i, token in enumerate(s.token_ids)
    ]
    assert list(zip(inputs.token_ids.tolist(), inputs.positions.tolist(), strict=True)) == expected
    assert inputs.batch.longest == max(s.start + len(s.token_ids) for s in plan.sequences)
    assert len(inputs.batch.groups) == len(plan.sequences[0].changes)
    for number, group in enumerate(inputs.batch.groups):
        tables = [s.changes[number] for s in plan.sequences]
        assert group.query_lens == [len(s.token_ids) for s in plan.sequences]
        flat, begins, counts, there = group.block_tables
        found = [list(flat[begin : begin + count]) for begin, count in zip(begins, counts, strict=True)]
        assert found == [table.blocks for table in tables]
        assert (there is not None) == unseen
        if there is not None:
            lengths = list(group.query_lens)
            assert there.query_starts.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
            assert (there.context_lens.tolist(), there.begins.tolist()) == (group.context_lens, begins)
        side_by_side = gathered(group.block_tables.on(CPU), torch.tensor(begins), max(counts)).tolist()
        assert [row[:count] for row, count in zip(side_by_side, counts, strict=True)] == found
        assert group.cells.tolist() == [
            table.blocks[(s.start + i) // block_size - table.first] * block_size + (s.start + i) % block_size
            for s, table in zip(plan.sequences, tables, strict=True)
            for i in range(len(s.token_ids))
        ]
        # The contexts lack the freed blocks.
        assert group.context_lens == [
            s.start + len(s.token_ids) - table.first * block_size
            for s, table in zip(plan.sequences, tables, strict=True)
        ]
