"""A batch state beside a simulated runner: after every plan it is what one would build from nothing.

What a scheduler knows of its sequences when it plans a step is written down then, and compared when the step runs,
which may be steps later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from simulated import SimulatedRunner

from plimsoll_runtime.engine.plan import LAST_CHOSEN, StepPlan, StepResult
from plimsoll_runtime.engine.sequence import SequenceState
from plimsoll_runtime.execution.batch_state import BatchState
from plimsoll_runtime.execution.inputs import step_inputs

CPU = torch.device("cpu")

Tables = list[tuple[int, list[int]]]
"""Of a sequence in each group: the number of the first block, and the blocks."""


class KeptBeside:
    """The state, and what is expected of the steps that are still to come."""

    def __init__(self, runner: SimulatedRunner, num_blocks: int) -> None:
        """`num_blocks`: the most that there will ever be."""
        self.state = BatchState(runner.max_sequences, len(runner.rules), num_blocks)
        self._runner = runner
        self._expected: deque[list[Tables]] = deque()

    def planned(self, sequences: Sequence[SequenceState]) -> None:
        """A step was planned, of these sequences."""
        self._expected.append([[(t.first, t.blocks.copy()) for t in s.tables] for s in sequences])

    def begin(self, plan: StepPlan) -> None:
        """The next step runs."""
        self.state.begin(plan)
        self.state.check_integrity()
        expected, size = self._expected.popleft(), self._runner.block_size
        for sequence, tables in zip(plan.sequences, expected, strict=True):
            slot = sequence.slot
            assert [(kept.firsts[slot], list(kept.table(slot))) for kept in self.state.tables] == tables
        if not plan.sequences:
            return
        inputs = step_inputs(plan, self.state, size, CPU)
        rows = [(s, s.start + i, token) for s in plan.sequences for i, token in enumerate(s.token_ids)]
        last = {s.slot: self._runner.slots[s.slot].last for s in plan.sequences if LAST_CHOSEN in s.token_ids}
        assert inputs.token_ids.tolist() == [last[s.slot] if t == LAST_CHOSEN else t for s, _, t in rows]
        assert inputs.positions.tolist() == [position for _, position, _ in rows]
        places = {s.slot: tables for s, tables in zip(plan.sequences, expected, strict=True)}
        for number, batch in enumerate(inputs.batch.groups):
            found = {slot: tables[number] for slot, tables in places.items()}
            assert batch.cells.tolist() == [
                found[s.slot][1][position // size - found[s.slot][0]] * size + position % size
                for s, position, _ in rows
            ]
            assert batch.context_lens == [s.start + len(s.token_ids) - found[s.slot][0] * size for s in plan.sequences]
            flat, begins, counts = batch.block_tables
            tables_of = [list(flat[begin : begin + count]) for begin, count in zip(begins, counts, strict=True)]
            assert tables_of == [found[s.slot][1] for s in plan.sequences]

    def end(self, plan: StepPlan, result: StepResult) -> None:
        """It has run."""
        for sequence, output in zip(plan.sequences, result.outputs, strict=True):
            if sequence.sample:
                self.state.chose(sequence.slot, output.token_id or 0)
