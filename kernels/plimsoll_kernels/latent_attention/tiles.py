"""Divides heads among programs: each reads all vectors once for its heads."""

from __future__ import annotations

FEWEST, MOST = 16, 32
"""Rows of a tile: the fewest that matrix units accept, and the most whose sums of 512 numbers fit in registers."""


def tile_rows(heads: int) -> int:
    """Return the rows of a tile, one for each head and row of a sequence: a power of two."""
    return FEWEST if heads <= FEWEST else MOST


def head_tiles(heads: int) -> int:
    """Return the number of programs among which the heads of one row are divided."""
    return -(-heads // tile_rows(heads))
