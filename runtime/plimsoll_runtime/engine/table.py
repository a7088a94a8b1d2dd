"""Where a group of layers has a sequence's tokens, while the sequence grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from plimsoll_runtime.engine.plan import TableChange


@dataclass(slots=True)
class Table:
    """The blocks from number `first` of the sequence on; those before are given back. More are appended to `blocks`.

    The runner has the blocks before number `same` as they are here, and a table that begins with number `told`, None
    where it has none.
    """

    first: int = 0
    blocks: list[int] = field(default_factory=list)
    same: int = field(init=False)
    told: int | None = None

    def __post_init__(self) -> None:
        self.same = self.first

    @property
    def end(self) -> int:
        """The number of the block behind the last."""
        return self.first + len(self.blocks)

    def replace(self, number: int, block: int) -> int:
        """Have another block in the place of one, which is returned."""
        own, self.blocks[number - self.first] = self.blocks[number - self.first], block
        self.same = min(self.same, number)
        return own

    def give_back(self, count: int) -> list[int]:
        """Have the first blocks no longer; what they were."""
        given = self.blocks[:count]
        del self.blocks[:count]
        self.first += count
        self.same = max(self.same, self.first)
        return given

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Blocks have other numbers from now on. The runner is to hear of all that there are."""
        self.blocks = [moved.get(block, block) for block in self.blocks]
        self.same, self.told = self.first, None

    def change(self, group: int) -> TableChange | None:
        """What the runner is to be told next, which it has then; None where it has all."""
        start, end = self.same, self.first + len(self.blocks)
        if start == end and self.told == self.first:
            return None
        self.same, self.told = end, self.first
        return TableChange(group, self.first, start, self.blocks[start - self.first :])

    @property
    def is_told(self) -> bool:
        """Whether the runner has it as it is."""
        return self.same == self.end and self.told == self.first
