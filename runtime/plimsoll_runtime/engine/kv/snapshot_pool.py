"""Rows for snapshots: the states of a sequence as they were behind a whole number of its blocks.

A row bears the name of the last of these blocks, which stands for all tokens up to there, so it is found as blocks are.
It is *held* (by a sequence that runs, for itself, or by the step that fills it), *idle* (found by its name until its
turn comes, the one that was asked for longest ago first) or *empty*, like blocks of the KV cache.

A step first copies from rows into slots, then computes, then copies slots to rows. So a row may be given to somebody
else in the very step in which it is read; what it gets in a step is found from the next one on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from plimsoll_runtime.engine.kv.block_pool import BlockPool


@dataclass(slots=True)
class SnapshotCounts:
    """Counters: snapshots that were taken, and those that a sequence went on from."""

    taken: int = 0
    resumed: int = 0


class SnapshotRows:
    """Rows 1 .. `total`, and what the step that is being planned does with them.

    `saves` (slot, row) come once it is over, `resumes` (row, slot) before it computes. `fresh`: the names of what it
    saves, with the tokens that each stands for.
    """

    def __init__(self, total: int) -> None:
        self.pool = BlockPool(total + 1)
        self.counts = SnapshotCounts()
        self.fresh: dict[bytes, int] = {}
        self.saves: list[tuple[int, int]] = []
        self.resumes: list[tuple[int, int]] = []
        self._filled: list[int] = []

    def begin_step(self) -> None:
        """What is noted from now on belongs to a new step: what the last one fills can be found."""
        self.pool.release(self._filled)
        self._filled = []
        self.fresh = {}
        self.saves, self.resumes = [], []

    def has(self, name: bytes) -> bool:
        """Whether there is a snapshot from which this step can go on."""
        return name not in self.fresh and self.pool.find(name) is not None

    def resume(self, slot: int, name: bytes) -> None:
        """Have the step begin with copying a snapshot that is there into a slot."""
        row = self.pool.find(name)
        assert row is not None
        self.pool.touch(row)
        self.resumes.append((row, slot))
        self.counts.resumed += 1

    def keep(self, slot: int, name: bytes, tokens: int) -> bool:
        """Have what the step leaves in a slot kept for whoever comes; whether it is, or was there already."""
        row = self.pool.find(name)
        if row is not None:
            self.pool.touch(row)
            return True
        if not self.pool.available:
            return False
        row = self.pool.take()
        self._filled.append(row)
        self._save(slot, row)
        self.name_fresh(row, name, tokens)
        return True

    def hold(self) -> int | None:
        """A row that is its holder's until `let_go`, whatever lies there; None when all are held."""
        return self.pool.take() if self.pool.available else None

    def refill(self, slot: int, row: int) -> None:
        """Have what the step leaves in a slot kept in a row that is held, in the place of what was there."""
        self.pool.forget(row)
        self._save(slot, row)

    def name(self, row: int, name: bytes) -> None:
        """What a row holds since an earlier step is known by now. It stays nameless where another holds the same."""
        self.pool.publish(row, name)

    def name_fresh(self, row: int, name: bytes, tokens: int) -> None:
        """The same of what this step saves."""
        self.pool.publish(row, name)
        self.fresh[name] = tokens

    def let_go(self, row: int) -> None:
        """The holder wants it no longer; whoever knows its name may still find it."""
        self.pool.release([row])

    def forget(self, name: bytes) -> None:
        """Make a name unfindable."""
        row = self.pool.find(name)
        if row is not None:
            self.pool.forget(row)

    def forget_all(self) -> None:
        """Make every name unfindable."""
        self.pool.forget_all()

    def _save(self, slot: int, row: int) -> None:
        self.saves.append((slot, row))
        self.counts.taken += 1

    def check_integrity(self, held: Collection[int]) -> None:
        """Raises AssertionError where a row is leaked, held twice or filled twice; `held` are those of sequences."""
        self.pool.check_integrity()
        assert len(set(held)) == len(held), "two sequences hold a row"
        holders = [*held, *self._filled]
        for row in range(1, self.pool.total + 1):
            references = self.pool.references(row)
            assert references == holders.count(row), f"row {row}: {references} references, {holders.count(row)} holders"
        for rows in ([row for _, row in self.saves], [slot for slot, _ in self.saves], [s for _, s in self.resumes]):
            assert len(set(rows)) == len(rows), "a step copies twice to one place, or twice from one slot"
