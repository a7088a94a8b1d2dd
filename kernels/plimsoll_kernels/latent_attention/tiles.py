"""How heads are divided among programs: each reads all vectors once for those that it has."""

from __future__ import annotations

FEWEST, MOST = 16, 32
"""Rows of a tile: what multipliers take at least, and as many as sums of 512 numbers each leave registers for."""


def tile_rows(heads: int) -> int:
    """Rows of a tile, one for each head and row of a sequence: a power of two."""
    return FEWEST if heads <= FEWEST else MOST


def head_tiles(heads: int) -> int:
    """Programs among which the heads of one row are divided."""
    return -(-heads // tile_rows(heads))
