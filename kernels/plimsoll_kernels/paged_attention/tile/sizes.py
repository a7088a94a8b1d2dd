"""Tile sizes of kernels that are bound by products, which fit every device since sm_80.

Queries and two stages of keys and values take 96 KiB at most.
"""

from __future__ import annotations


def tile_rows(size: int, group: int, itemsize: int) -> int:
    """Return the number of queries of a tile, a power of two, for heads of `size` numbers of which `group` share a KV
    head.
    """
    return max(64 if _wide(size, itemsize) <= 256 else 32, 1 << (group - 1).bit_length())


def tile_tokens(size: int, itemsize: int) -> int:
    """Return the number of tokens whose keys and values a tile has."""
    wide = _wide(size, itemsize)
    return 64 if wide <= 256 else 32 if wide <= 512 else 16


def _wide(size: int, itemsize: int) -> int:
    """Return the bytes of a padded head."""
    return max(16, 1 << (size - 1).bit_length()) * itemsize
