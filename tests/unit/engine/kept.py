"""Batch states next to a simulated runner: after every plan they equal a state built from scratch.

The scheduler's sequences are recorded when it plans a step, and compared when the step runs, possibly several steps
later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from simulated import SimulatedRunner

from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, StepPlan, StepResult
from plimsoll_runtime.engine.sequence import SequenceState
from plimsoll_runtime.execution.inputs.batch_state import BatchState, step_inputs
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.inputs.step_rows import StepRows

CPU = torch.device("cpu")
LONGEST = 1000
"""Tokens of a sequence, at least as many as any simulation has."""

Tables = list[tuple[int, list[int]]]
"""For each cache group of a sequence: the number of the first block, and the blocks."""


class KeptBeside:
    """Two batch states, one of them on a device, and the expectations of the planned steps."""

    def __init__(self, runner: SimulatedRunner, num_blocks: int) -> None:
        """`num_blocks`: the largest number of blocks in the test."""
        sizes = (runner.max_sequences, len(runner.rules), num_blocks)
        columns = columns_of(LONGEST, runner.block_size)
        self.states = (BatchState(*sizes), DeviceState(*sizes, columns, CPU))
        self._runner = runner
        self._expected: deque[list[Tables]] = deque()

    def planned(self, sequences: Sequence[SequenceState]) -> None:
        """Record the sequences of a planned step."""
        self._expected.append([[(t.first, t.blocks.copy()) for t in s.kv.tables] for s in sequences])

    def begin(self, plan: StepPlan) -> None:
        """Run and check the next step."""
        expected = self._expected.popleft()
        for state in self.states:
            state.begin(plan)
            state.check_integrity()
            for sequence, tables in zip(plan.sequences, expected, strict=True):
                slot = sequence.slot
                assert [(kept.firsts[slot], list(kept.table(slot))) for kept in state.tables] == tables
            if plan.sequences:
                self._check_inputs(plan, state, expected)

    def moved(self, plan: StepPlan) -> None:
        """Apply the next step's moves only."""
        self._expected.popleft()
        for state in self.states:
            state.begin(plan)
            state.check_integrity()

    def _check_inputs(self, plan: StepPlan, state: BatchState | DeviceState, expected: Sequence[Tables]) -> None:
        size = self._runner.block_size
        if isinstance(state, BatchState):
            inputs = step_inputs(plan, state, size)
        else:
            state.upload_buffer.start_step()
            inputs = StepRows.of(plan, state, size).inputs()
            state.check_integrity()
        rows = [(s.slot, s.start + i, token) for s in plan.sequences for i, token in enumerate(s.token_ids)]
        last = {s.slot: self._runner.slots[s.slot].last for s in plan.sequences if LAST_CHOSEN in s.token_ids}
        assert inputs.token_ids.tolist() == [last[slot] if t == LAST_CHOSEN else t for slot, _, t in rows]
        assert inputs.positions.tolist() == [position for _, position, _ in rows]
        for number, batch in enumerate(inputs.batch.groups):
            tables = {s.slot: each[number] for s, each in zip(plan.sequences, expected, strict=True)}
            assert batch.cells.tolist() == [
                tables[slot][1][position // size - tables[slot][0]] * size + position % size
                for slot, position, _ in rows
            ]
            ends = [s.start + len(s.token_ids) for s in plan.sequences]
            firsts = [tables[s.slot][0] for s in plan.sequences]
            assert batch.context_lens == [end - first * size for end, first in zip(ends, firsts, strict=True)]
            flat, begins, counts, there = batch.block_tables
            found = [list(flat[begin : begin + count]) for begin, count in zip(begins, counts, strict=True)]
            assert found == [tables[s.slot][1] for s in plan.sequences]
            assert (there is None) == isinstance(state, BatchState)
            assert there is None or there.begins.tolist() == begins

    def end(self, plan: StepPlan, result: StepResult) -> None:
        """Record the results of a step."""
        pairs = zip(plan.sequences, result.outputs, strict=True)
        if chosen := [(s.slot, output) for s, output in pairs if s.sample]:
            slots, outputs = zip(*chosen, strict=True)
            host, device = self.states
            host.record(slots, outputs)
            device.record(torch.tensor(slots), torch.tensor([output.token_id or 0 for output in outputs]))
