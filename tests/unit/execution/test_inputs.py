"""Flat inputs equal what a loop over tokens gives."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.plan import LAST_CHOSEN, ScheduledSequence, StepPlan
from plimsoll_runtime.execution.inputs import step_inputs

LAST = range(100, 106)


@st.composite
def plans(draw: st.DrawFn) -> tuple[StepPlan, int]:
    block_size = draw(st.sampled_from([8, 16]))
    sequences = []
    for slot in range(draw(st.integers(1, 6))):
        unseen = draw(st.booleans())
        start, length = draw(st.integers(0, 70)), 1 if unseen else draw(st.integers(1, 40))
        blocks = -(-(start + length) // block_size) + draw(st.integers(0, 1))
        sequences.append(
            ScheduledSequence(
                slot=slot,
                start=start,
                token_ids=[LAST_CHOSEN]
                if unseen
                else draw(st.lists(st.integers(0, 99), min_size=length, max_size=length)),
                block_ids=draw(st.lists(st.integers(1, 500), min_size=blocks, max_size=blocks)),
                sample=True,
            )
        )
    return StepPlan(sequences), block_size


@given(plans())
def test_every_row(case: tuple[StepPlan, int]) -> None:
    plan, block_size = case
    inputs = step_inputs(plan, block_size, torch.device("cpu"), LAST)
    expected = [
        (
            LAST[s.slot] if token == LAST_CHOSEN else token,
            s.start + i,
            s.block_ids[(s.start + i) // block_size] * block_size + (s.start + i) % block_size,
        )
        for s in plan.sequences
        for i, token in enumerate(s.token_ids)
    ]
    rows = zip(inputs.token_ids.tolist(), inputs.positions.tolist(), inputs.slot_mapping.tolist(), strict=True)
    assert list(rows) == expected
    assert inputs.query_lens == [len(s.token_ids) for s in plan.sequences]
    assert inputs.context_lens == [s.start + len(s.token_ids) for s in plan.sequences]
