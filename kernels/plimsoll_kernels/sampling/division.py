"""Divides rows of logits among programs."""

from __future__ import annotations

from dataclasses import dataclass

TILES_AT_ONCE = 8
"""Tiles that a program holds: 1,024 tokens, 8 a thread."""
PROGRAMS_PER_PROCESSOR = 16
"""Programs of 4 warps that a multiprocessor runs at once."""
MOST_LOOPS = 8
"""The most loops: with more, the last programs of a launch would run alone for longer than it takes to start more
programs.
"""


@dataclass(frozen=True, slots=True)
class Division:
    """`splits` programs a row, each of which reads `loops` times `TILES_AT_ONCE` tiles."""

    splits: int
    loops: int

    @classmethod
    def of(cls, rows: int, tiles: int, processors: int) -> Division:
        """Return a division that fills the device with programs; a program gets more loops only if there are more tiles
        than that.

        Raises ValueError if a number is below one.
        """
        if min(rows, tiles, processors) < 1:
            raise ValueError(f"{rows} rows, {tiles} tiles and {processors} processors: each must be at least 1")
        steps = -(-tiles // TILES_AT_ONCE)
        loops = min(MOST_LOOPS, steps, max(1, rows * steps // (processors * PROGRAMS_PER_PROCESSOR)))
        return cls(-(-steps // loops), loops)
