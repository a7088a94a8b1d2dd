"""Rows for state snapshots: the recurrent states of a sequence at a block boundary.

A row is found by a name: the block hash of the last block before the boundary, which identifies all tokens up to there.
Like KV blocks, a row is *held* (by a running sequence for itself, or by the step that fills it), *idle*
(found by its name until it is reused, least recently used first) or *empty*.

A step copies rows to slots, computes, then copies slots to rows. So a row may be given to another sequence in the same
step in which it is read. The new contents can be found from the next step on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from plimsoll_runtime.engine.kv.block_pool import BlockPool


@dataclass(slots=True)
class SnapshotCounts:
    """Counters: snapshots that were taken, and snapshots from which a sequence resumed."""

    taken: int = 0
    resumed: int = 0


class SnapshotRows:
    """Rows 1 .. `total`, and their copies in the step being planned.

    `saves` (slot, row) are copied after the step computes, `resumes` (row, slot) before. `fresh`: the names of the rows
    in `saves`, with the number of tokens that each covers.
    """

    def __init__(self, total: int) -> None:
        self.pool = BlockPool(total + 1)
        self.counts = SnapshotCounts()
        self.fresh: dict[bytes, int] = {}
        self.saves: list[tuple[int, int]] = []
        self.resumes: list[tuple[int, int]] = []
        self._filled: list[int] = []

    def begin_step(self) -> None:
        """Start a new step. Rows that the previous step filled can be found."""
        self.pool.release(self._filled)
        self._filled = []
        self.fresh = {}
        self.saves, self.resumes = [], []

    def has(self, name: bytes) -> bool:
        """Whether this step can resume from the snapshot with this name."""
        return name not in self.fresh and self.pool.find(name) is not None

    def resume(self, slot: int, name: bytes) -> None:
        """Copy an existing snapshot into a slot at the start of the step."""
        row = self.pool.find(name)
        assert row is not None
        self.pool.touch(row)
        self.resumes.append((row, slot))
        self.counts.resumed += 1

    def keep(self, slot: int, name: bytes, tokens: int) -> bool:
        """Save a slot's states at the end of the step, to be found by name. Return whether they are saved, by this call
        or earlier.
        """
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
        """Return an empty or idle row, held by the caller until `let_go`; None if all rows are held."""
        return self.pool.take() if self.pool.available else None

    def refill(self, slot: int, row: int) -> None:
        """Save a slot's states at the end of the step in a held row, and remove the row's old name."""
        self.pool.forget(row)
        self._save(slot, row)

    def name(self, row: int, name: bytes) -> None:
        """Name a row that an earlier step filled. It gets no name if another row has it."""
        self.pool.publish(row, name)

    def name_fresh(self, row: int, name: bytes, tokens: int) -> None:
        """Name a row that this step fills."""
        self.pool.publish(row, name)
        self.fresh[name] = tokens

    def let_go(self, row: int) -> None:
        """Release a held row. It can be found by its name until it is reused."""
        self.pool.release([row])

    def forget(self, name: bytes) -> None:
        """Remove a name, so that its snapshot cannot be found."""
        row = self.pool.find(name)
        if row is not None:
            self.pool.forget(row)

    def forget_all(self) -> None:
        """Remove all names, so that no snapshot can be found."""
        self.pool.forget_all()

    def _save(self, slot: int, row: int) -> None:
        self.saves.append((slot, row))
        self.counts.taken += 1

    def check_integrity(self, held: Collection[int]) -> None:
        """Raise AssertionError if a row is leaked, held twice or filled twice; `held` are the rows of sequences."""
        self.pool.check_integrity()
        assert len(set(held)) == len(held), "two sequences hold a row"
        holders = [*held, *self._filled]
        for row in range(1, self.pool.total + 1):
            references = self.pool.references(row)
            assert references == holders.count(row), f"row {row}: {references} references, {holders.count(row)} holders"
        for rows in ([row for _, row in self.saves], [slot for slot, _ in self.saves], [s for _, s in self.resumes]):
            assert len(set(rows)) == len(rows), "a step copies twice to one place, or twice from one slot"
