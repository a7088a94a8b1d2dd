"""A step that the scheduler has planned, and the plan while it grows."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.moves import Merge
from plimsoll_runtime.engine.plan import ScheduledSequence, SlotInit, StepPlan
from plimsoll_runtime.engine.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Step:
    """A plan, and what `commit` must know of it.

    That is the sequences in the plan's order, blocks to merge afterwards, how many tokens it computes, and when it was
    planned, in nanoseconds.
    """

    plan: StepPlan
    sequences: list[SequenceState]
    merges: list[Merge]
    tokens: int
    planned_ns: int

    @property
    def mostly_prompts(self) -> bool:
        """Whether it computes two tokens or more for a sequence on average: a decode has one."""
        return 2 * len(self.sequences) <= self.tokens


class StepBuilder:
    """A plan while it grows; `budget` tokens may still be added."""

    __slots__ = ("budget", "entries", "new_slots", "sequences", "tokens")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self.entries: list[ScheduledSequence] = []
        self.sequences: list[SequenceState] = []
        self.new_slots: list[SlotInit] = []

    def add(self, sequence: SequenceState, entry: ScheduledSequence) -> None:
        """Plan a chunk of a sequence."""
        self.entries.append(entry)
        self.sequences.append(sequence)
        self.budget -= len(entry.token_ids)
        self.tokens += len(entry.token_ids)
