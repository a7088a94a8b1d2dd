"""What the runner keeps of the sequences in its slots from step to step; a step's plan says what is new."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.engine.plan import LAST_CHOSEN, ScheduledSequence, SequenceOutput, StepPlan
from plimsoll_runtime.execution.kept_tables import KeptTables
from plimsoll_runtime.execution.mirror import Mirror
from plimsoll_runtime.execution.sent import sent


class BatchState:
    """By slot: the block `tables`, one of each group, and the token that its last step chose: `seen`.

    Where a `device` computes behind the host's back, the tokens are kept there, for nobody has seen them yet when the
    next step wants them, and the tables there as well.
    """

    def __init__(self, num_slots: int, groups: int, num_blocks: int, device: torch.device | None = None) -> None:
        self.tables = [KeptTables(num_slots, num_blocks, noted=device is not None) for _ in range(groups)]
        self.mirrors = None if device is None else [Mirror(tables, device) for tables in self.tables]
        self.seen = [0] * num_slots
        self._unseen = None if device is None else torch.zeros(num_slots, dtype=torch.int64, device=device)

    def begin(self, plan: StepPlan) -> None:
        """Have what is new with a step."""
        for slot in plan.freed_slots:
            for tables in self.tables:
                tables.clear(slot)
        if plan.moves:
            for tables in self.tables:
                tables.clear_all()
        for sequence in plan.sequences:
            for change in sequence.changes:
                self.tables[change.group].change(sequence.slot, change)

    def fill_in(self, token_ids: Tensor, sequences: Sequence[ScheduledSequence]) -> None:
        """Put tokens that only the device has where LAST_CHOSEN stands among a step's, int64 [T] there."""
        assert self._unseen is not None, "tokens are kept on the host"
        row, places = 0, []
        for sequence in sequences:
            if sequence.token_ids[0] == LAST_CHOSEN:
                places.append((row, sequence.slot))
            row += len(sequence.token_ids)
        if places:
            rows, slots = sent(np.array(places).T.copy(), token_ids.device).unbind()
            token_ids.index_copy_(0, rows, self._unseen.index_select(0, slots))

    def chose(self, slots: Sequence[int], outputs: Sequence[SequenceOutput]) -> None:
        """A step has chosen tokens for slots, or could not."""
        for slot, output in zip(slots, outputs, strict=True):
            self.seen[slot] = output.token_id or 0

    def chose_unseen(self, slots: Sequence[int], tokens: Tensor) -> None:
        """The same, int64 [R] on the device."""
        assert self._unseen is not None, "tokens are kept on the host"
        self._unseen.index_copy_(0, sent(np.array(slots), tokens.device), tokens)

    def check_integrity(self) -> None:
        """Raises AssertionError where a table is not whole, or another one on the device."""
        for checked in (*self.tables, *(self.mirrors or ())):
            checked.check_integrity()
