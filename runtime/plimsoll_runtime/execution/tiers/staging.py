"""Frames that only stand between the cache and a disk, where host memory is no tier: how many, and what they take.

They bound how much of a prompt can come back at once. On a CPU they lie in the memory that the cache lies in.
"""

from __future__ import annotations

from plimsoll_runtime.execution.tiers.host import host_bytes

SHARE = 8
LEAST = 16
MOST_BYTES = 1 << 30
"""One frame for so many blocks of the cache, within these bounds."""


def staging_frames(num_blocks: int, block_bytes: int) -> int:
    """Frames for a cache of so many blocks."""
    return max(LEAST, min(num_blocks // SHARE, MOST_BYTES // block_bytes))


def staging_bytes(num_blocks: int, block_bytes: int) -> int:
    """Bytes of those frames. They grow with the blocks."""
    return host_bytes(staging_frames(num_blocks, block_bytes), block_bytes)
