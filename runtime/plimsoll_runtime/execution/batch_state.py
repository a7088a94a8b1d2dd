"""What the runner keeps of the sequences in its slots from step to step; a step's plan says what is new."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll_runtime.engine.plan import LAST_CHOSEN, ScheduledSequence, StepPlan
from plimsoll_runtime.execution.kept_tables import KeptTables


class BatchState:
    """By slot: the block tables, one of each group of the cache, and the token that the slot's last step chose."""

    def __init__(self, num_slots: int, groups: int, num_blocks: int) -> None:
        self.tables = [KeptTables(num_slots, num_blocks) for _ in range(groups)]
        self._last_chosen = [0] * num_slots

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

    def tokens(self, sequences: Sequence[ScheduledSequence]) -> list[Sequence[int]]:
        """Those that a step computes, of each sequence."""
        last = self._last_chosen
        return [(last[s.slot],) if s.token_ids[0] == LAST_CHOSEN else s.token_ids for s in sequences]

    def chose(self, slot: int, token: int) -> None:
        """A step has chosen a token for a slot."""
        self._last_chosen[slot] = token

    def check_integrity(self) -> None:
        """Raises AssertionError where a table is not whole."""
        for tables in self.tables:
            tables.check_integrity()
