"""Where prefixes were sent: the replicas that computed a block, for as many blocks as are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MOST_BLOCKS_KNOWN = 1 << 16
"""Some 10 MiB. They stand for eight million tokens, more than a dozen replicas hold."""
MOST_REPLICAS = 4  # of a block, the last ones; a prefix that is hot everywhere needs no memory


class PrefixIndex:
    """The replicas of each block, the latest first; the least recently used blocks are forgotten."""

    def __init__(self, most: int = MOST_BLOCKS_KNOWN) -> None:
        self._most = most
        self._seen: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def depths(self, blocks: Sequence[int]) -> dict[str, int]:
        """For each replica that had one of the blocks: the number of blocks up to its deepest one."""
        found: dict[str, int] = {}
        for depth, block in enumerate(blocks, 1):
            for replica in self._seen.get(block, ()):
                found[replica] = depth
        return found

    def sent(self, blocks: Sequence[int], replica_id: str) -> None:
        """A replica gets a request that begins with these."""
        for block in blocks:
            known = self._seen.get(block, ())
            if replica_id not in known:
                self._seen[block] = (replica_id, *known[: MOST_REPLICAS - 1])
            self._seen.move_to_end(block)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def check_integrity(self) -> None:
        """Raise AssertionError where more is remembered than may be."""
        assert len(self._seen) <= self._most, f"{len(self._seen)} blocks are remembered"
        for block, replicas in self._seen.items():
            assert 0 < len(set(replicas)) == len(replicas) <= MOST_REPLICAS, (
                f"block {block} is said to be at {replicas}"
            )
