"""Index of prefix blocks: the replicas that got requests with a block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MOST_BLOCKS_KNOWN = 1 << 16
"""The most blocks, about 10 MiB. They cover eight million tokens, more than the caches of a dozen replicas."""
MOST_REPLICAS = 4  # for each block, the latest; a prefix that all replicas have needs no entry


class PrefixIndex:
    """Ids of the replicas that got each block, the latest first; the least recently used blocks are removed."""

    def __init__(self, most: int = MOST_BLOCKS_KNOWN) -> None:
        self._most = most
        self._seen: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def depths(self, blocks: Sequence[int]) -> dict[str, int]:
        """Return, for each replica that got one of the blocks, the number of blocks up to its last one."""
        found: dict[str, int] = {}
        for depth, block in enumerate(blocks, 1):
            for replica in self._seen.get(block, ()):
                found[replica] = depth
        return found

    def sent(self, blocks: Sequence[int], replica_id: str) -> None:
        """Record that a replica gets a request that starts with these blocks."""
        for block in blocks:
            known = self._seen.get(block, ())
            if replica_id not in known:
                self._seen[block] = (replica_id, *known[: MOST_REPLICAS - 1])
            self._seen.move_to_end(block)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def check_integrity(self) -> None:
        """Raise AssertionError if a limit is exceeded."""
        assert len(self._seen) <= self._most, f"{len(self._seen)} blocks are remembered"
        for block, replicas in self._seen.items():
            assert 0 < len(set(replicas)) == len(replicas) <= MOST_REPLICAS, (
                f"block {block} has the replicas {replicas}"
            )
