"""Where a group of layers has a sequence's tokens, while the sequence grows."""

from __future__ import annotations

from dataclasses import dataclass, field

from plimsoll_runtime.engine.plan import BlockTable


@dataclass(slots=True)
class Table:
    """The blocks from number `first` of the sequence on; those before are given back."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The number of the block behind the last."""
        return self.first + len(self.blocks)

    def frozen(self) -> BlockTable:
        """A copy for a plan."""
        return BlockTable(self.first, self.blocks.copy())
