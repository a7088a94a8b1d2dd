"""What a step does to blocks besides computing."""

from __future__ import annotations

from typing import NamedTuple

from plimsoll_runtime.engine.sequence import SequenceState


class Merge(NamedTuple):
    """A block of a sequence whose contents another block has too; a reference to that one is held for the merge."""

    sequence: SequenceState
    epoch: int
    group: int
    number: int
    block: int


class Moves:
    """What the step that is being planned moves, in this order, before it computes.

    Spills (block, frame) go to host memory, restores (frame, block) come back, copies are (source, target). The merges
    come once the step is over.
    """

    __slots__ = ("copies", "merges", "restores", "spills")

    def __init__(self) -> None:
        self.begin_step()

    def begin_step(self) -> None:
        """What is noted from now on belongs to a new step. The lists of the one before are its plan's."""
        self.spills: list[tuple[int, int]] = []
        self.restores: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.merges: list[Merge] = []
