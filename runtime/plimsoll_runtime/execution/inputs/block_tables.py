"""The block tables of a cache group, kept from step to step on the host and on the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plimsoll_runtime.engine.protocol.plan import TableChange
from plimsoll_runtime.execution.inputs.upload_buffer import UploadBuffer, UploadSlice

FEWEST = 64
"""The fewest columns: enough for tables of up to 1,024 tokens in blocks of 16 without widening."""


class BlockTableState:
    """The block tables of all slots in one cache group: a row of each slot in one array, `blocks`.

    A table begins anywhere in its row, and moves back to the row's beginning when it reaches the end. So a row need not
    be longer than twice what a window keeps, however many blocks are freed. By slot, `firsts` is the number of the
    first block that the table still has, `begins` its index in `blocks`, and `counts` the number of blocks.
    """

    def __init__(self, num_slots: int, num_blocks: int, width: int = FEWEST) -> None:
        """For a cache of `num_blocks` blocks. Rows have `width` columns, more if a table needs them."""
        self.width = width
        self.blocks = array("i", bytes(4 * num_slots * width))
        self.firsts = array("q", [0] * num_slots)
        self.begins = array("q", [slot * width for slot in range(num_slots)])
        self.counts = array("q", [0] * num_slots)
        self._num_blocks = num_blocks

    def change(self, slot: int, change: TableChange) -> None:
        """Change a slot's table as a plan says.

        Raises ValueError if the change does not fit the current table, or for blocks that the cache does not have.
        """
        first, start, blocks = change.first, change.start, change.blocks
        if blocks and not 0 <= min(blocks) <= max(blocks) < self._num_blocks:
            raise ValueError(f"a block table has a block outside 0..{self._num_blocks - 1}")
        kept = start - first
        if kept == 0:
            self.begins[slot] = slot * self.width
        else:
            before = self.firsts[slot]
            if not (before <= first and first < start <= before + self.counts[slot]):
                raise ValueError(
                    f"a plan keeps the blocks {first} to {start - 1} of slot {slot}, but the slot has "
                    f"{self.counts[slot]} blocks from number {before} on"
                )
            self.begins[slot] += first - before
        self.firsts[slot], self.counts[slot] = first, kept + len(blocks)
        if self.begins[slot] + self.counts[slot] > (slot + 1) * self.width:
            self._make_room(slot, kept)
        begin = self.begins[slot] + kept
        self._write(begin, array("i", blocks))

    def clear(self, slot: int) -> None:
        """Empty a slot's table."""
        self.firsts[slot], self.begins[slot], self.counts[slot] = 0, slot * self.width, 0

    def clear_all(self) -> None:
        """Empty all tables."""
        for slot in range(len(self.counts)):
            self.clear(slot)

    def table(self, slot: int) -> Sequence[int]:
        """Return the blocks of a slot, from its first on."""
        begin = self.begins[slot]
        return self.blocks[begin : begin + self.counts[slot]]

    def check_integrity(self) -> None:
        """Raise AssertionError if a table leaves its row or has an invalid block."""
        width = self.width
        assert len(self.blocks) == width * len(self.counts), "rows are lost"
        for slot, (first, begin, count) in enumerate(zip(self.firsts, self.begins, self.counts, strict=True)):
            assert first >= 0 <= count, f"slot {slot}: {count} blocks from number {first} on"
            assert slot * width <= begin, f"slot {slot} begins in another row"
            assert begin + count <= (slot + 1) * width, f"slot {slot} ends in another row"
            assert all(0 <= block < self._num_blocks for block in self.table(slot)), f"slot {slot} has an invalid block"

    def _write(self, begin: int, blocks: array[int]) -> None:
        self.blocks[begin : begin + len(blocks)] = blocks

    def _make_room(self, slot: int, kept: int) -> None:
        """Move the first `kept` blocks of a slot to the beginning of its row, so that the rest of its table fits.

        If the table fills more than half of its row, rows are made longer first: so a table reaches the end again only
        after as many more blocks.
        """
        if 2 * self.counts[slot] > self.width:
            self._widen(2 * self.counts[slot])
        begin, row = self.begins[slot], slot * self.width
        self._write(row, self.blocks[begin : begin + kept])
        self.begins[slot] = row

    def _widen(self, width: int) -> None:
        old, before = self.blocks, self.width
        self.blocks = array("i", bytes(4 * width * len(self.counts)))
        for slot, begin in enumerate(self.begins):
            row, start = slot * width, slot * before
            self.blocks[row : row + before] = old[start : start + before]
            self.begins[slot] = row + begin - start
        self.width = width


class DeviceBlockTables(BlockTableState):
    """Tables with an int32 copy on a device, to which each step sends the changes since the last.

    Rows are never longer than `width`. The copy stays at one address, so that graphs can read and write it. After the
    rows of all slots there is a padding row, all of it block 0, from the index `nobody` on.
    """

    def __init__(self, num_slots: int, num_blocks: int, width: int, device: torch.device) -> None:
        super().__init__(num_slots, num_blocks, width)
        self.nobody = len(self.blocks)
        self.on_device = torch.zeros(self.nobody + width, dtype=torch.int32, device=device)
        self._missing: list[tuple[int, int]] = []

    def change(self, slot: int, change: TableChange) -> None:
        """Change a slot's table. Raises ValueError as BlockTableState does, and for more blocks than columns."""
        if (count := change.start - change.first + len(change.blocks)) > self.width:
            raise ValueError(f"a table of {count} blocks does not fit in a row of {self.width} columns")
        super().change(slot, change)

    def missing(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices [N] into `blocks` of the entries that the device does not have yet, and these entries [N].

        They stay missing until `mark_sent`, because a broken pass may not have written them.
        """
        begins = np.array([begin for begin, _ in self._missing], dtype=np.int64)
        if any(end - begin != 1 for begin, end in self._missing):
            begins = np.concatenate([np.arange(begin, end) for begin, end in self._missing])
        return begins, np.frombuffer(self.blocks, np.int32)[begins].astype(np.int64)

    def mark_sent(self) -> None:
        """Record that the device has all changes, or will have them after the launches so far."""
        self._missing.clear()

    def add_to(self, buffer: UploadBuffer) -> UploadSlice | None:
        """Add the missing changes to the upload buffer of a step; return None if there are none."""
        places, blocks = self.missing()
        return buffer.add(np.concatenate([places, blocks])) if places.size else None

    def receive(self, changes: UploadSlice | None) -> None:
        """Write the changes of `add_to` to the device's copy, after the buffer was sent."""
        if changes is not None:
            places, blocks = changes.on_device.view(2, -1).unbind()
            self.on_device.index_copy_(0, places, blocks.to(torch.int32))
        self.mark_sent()

    def check_integrity(self) -> None:
        """Raise AssertionError also if the device's copy with the missing changes differs from the host's. Waits for
        the device.
        """
        super().check_integrity()
        there = self.on_device.cpu().numpy()
        places, blocks = self.missing()
        there[places] = blocks
        assert there[: self.nobody].tolist() == list(self.blocks), "the device's tables differ"
        assert not there[self.nobody :].any(), "the device has blocks in the padding row"

    def _write(self, begin: int, blocks: array[int]) -> None:
        super()._write(begin, blocks)
        self._missing.append((begin, begin + len(blocks)))

    def _widen(self, width: int) -> None:
        """Do nothing: `change` rejects tables that are longer than a row."""
