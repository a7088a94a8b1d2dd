"""What the runner keeps of the sequences in its slots from step to step; a step's plan says what is new."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.protocol.plan import SequenceOutput, StepPlan
from plimsoll_runtime.execution.device_state import DeviceState
from plimsoll_runtime.execution.kept_tables import KeptTables


class BatchState:
    """By slot: the block `tables`, one of each group, and the token that its last step chose: `seen`.

    Where a `device` computes behind the host's back, it keeps the tokens, and the tables as well.
    """

    def __init__(self, num_slots: int, groups: int, num_blocks: int, device: DeviceState | None = None) -> None:
        self.tables = [KeptTables(num_slots, num_blocks) for _ in range(groups)] if device is None else device.tables
        self.device = device
        self.seen = [0] * num_slots

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

    def chose(self, slots: Sequence[int], outputs: Sequence[SequenceOutput]) -> None:
        """A step has chosen tokens for slots, or could not."""
        for slot, output in zip(slots, outputs, strict=True):
            self.seen[slot] = output.token_id or 0

    def check_integrity(self) -> None:
        """Raises AssertionError where a table is not whole, or another one on the device."""
        for tables in self.tables:
            tables.check_integrity()
        if self.device is not None:
            self.device.check_integrity()
