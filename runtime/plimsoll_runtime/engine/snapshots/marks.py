"""What is known of a sequence's snapshots while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Marks:
    """Positions are in tokens, at borders of blocks.

    `cuts`: where its prompt is cut, for snapshots that others may begin with, in order. `saved`: its last border that
    somebody has a snapshot of. `row`: the one that it holds for itself (0: none), filled at `border`, and `named` once
    all tokens up to there are known.
    """

    saved: int
    cuts: list[int] = field(default_factory=list)
    row: int = 0
    border: int = 0
    named: bool = True
