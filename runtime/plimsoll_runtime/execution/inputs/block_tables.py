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
"""Columns that there are at least: no table of up to 1,024 tokens in blocks of 16 makes them more."""


class BlockTableState:
    """A row of numbers for each slot, all in one piece of memory.

    A table begins somewhere in its row, and moves back to the row's beginning when it comes to the end: so a row need
    not be longer than twice what a window keeps, however many blocks it has given back. By slot, `firsts` is the number
    of the first block that the table still has, `begins` where that lies in `blocks`, and `counts` how many there are.
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
        """Change a slot's table as a plan says. Raises ValueError for a change that does not fit to what is kept, and
        for blocks that the cache does not have.
        """
        first, start, blocks = change.first, change.start, change.blocks
        if blocks and not 0 <= min(blocks) <= max(blocks) < self._num_blocks:
            raise ValueError(f"a block table names a block outside 0..{self._num_blocks - 1}")
        kept = start - first
        if kept == 0:
            self.begins[slot] = slot * self.width
        else:
            before = self.firsts[slot]
            if not (before <= first and first < start <= before + self.counts[slot]):
                raise ValueError(
                    f"a plan leaves the blocks {first} to {start - 1} of slot {slot} as they are, and "
                    f"{self.counts[slot]} from number {before} on are kept"
                )
            self.begins[slot] += first - before
        self.firsts[slot], self.counts[slot] = first, kept + len(blocks)
        if self.begins[slot] + self.counts[slot] > (slot + 1) * self.width:
            self._make_room(slot, kept)
        begin = self.begins[slot] + kept
        self._write(begin, array("i", blocks))

    def clear(self, slot: int) -> None:
        """A slot has no table any more."""
        self.firsts[slot], self.begins[slot], self.counts[slot] = 0, slot * self.width, 0

    def clear_all(self) -> None:
        """No slot has."""
        for slot in range(len(self.counts)):
            self.clear(slot)

    def table(self, slot: int) -> Sequence[int]:
        """The blocks that a slot has, from its first on."""
        begin = self.begins[slot]
        return self.blocks[begin : begin + self.counts[slot]]

    def check_integrity(self) -> None:
        """Raises AssertionError where a table is not within its row, or holds what is no block."""
        width = self.width
        assert len(self.blocks) == width * len(self.counts), "rows are lost"
        for slot, (first, begin, count) in enumerate(zip(self.firsts, self.begins, self.counts, strict=True)):
            assert first >= 0 <= count, f"slot {slot}: {count} blocks from number {first} on"
            assert slot * width <= begin, f"slot {slot} begins in another row"
            assert begin + count <= (slot + 1) * width, f"slot {slot} ends in another row"
            assert all(0 <= block < self._num_blocks for block in self.table(slot)), (
                f"slot {slot} names what is no block"
            )

    def _write(self, begin: int, blocks: array[int]) -> None:
        self.blocks[begin : begin + len(blocks)] = blocks

    def _make_room(self, slot: int, kept: int) -> None:
        """Move the first `kept` blocks of a slot to where all of its table fits in its row.

        Rows are made longer, unless the table is at most half as long: then it comes to the end again only after as
        many blocks more.
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
    """Tables with a copy on a device, int32, to which each step sends what was written since the last.

    Rows are never longer than `width`. On the device they stay where they are, so that graphs can read and write them.
    Behind them is a row that belongs to nobody, all of it block 0, from `nobody` on.
    """

    def __init__(self, num_slots: int, num_blocks: int, width: int, device: torch.device) -> None:
        super().__init__(num_slots, num_blocks, width)
        self.nobody = len(self.blocks)
        self.on_device = torch.zeros(self.nobody + width, dtype=torch.int32, device=device)
        self._missing: list[tuple[int, int]] = []

    def change(self, slot: int, change: TableChange) -> None:
        """Change a slot's table. Raises ValueError as BlockTableState does, and for more blocks than columns."""
        if (count := change.start - change.first + len(change.blocks)) > self.width:
            raise ValueError(f"a table of {count} blocks, for which rows have {self.width} columns")
        super().change(slot, change)

    def missing(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places [N] of what was written and the device does not have yet, and the blocks that belong there [N].

        They are missing until `mark_sent`: a pass that broke off may not have written them.
        """
        begins = np.array([begin for begin, _ in self._missing], dtype=np.int64)
        if any(end - begin != 1 for begin, end in self._missing):
            begins = np.concatenate([np.arange(begin, end) for begin, end in self._missing])
        return begins, np.frombuffer(self.blocks, np.int32)[begins].astype(np.int64)

    def mark_sent(self) -> None:
        """The device has what was missing, or will have it when what was launched so far is done."""
        self._missing.clear()

    def add_to(self, buffer: UploadBuffer) -> UploadSlice | None:
        """Add what is missing to the upload buffer of a step; None if nothing is."""
        places, blocks = self.missing()
        return buffer.add(np.concatenate([places, blocks])) if places.size else None

    def receive(self, changes: UploadSlice | None) -> None:
        """Write the changes that `add_to` added, once the buffer was sent."""
        if changes is not None:
            places, blocks = changes.on_device.view(2, -1).unbind()
            self.on_device.index_copy_(0, places, blocks.to(torch.int32))
        self.mark_sent()

    def check_integrity(self) -> None:
        """Raises AssertionError also if what the device has, or still misses, is not what is kept. Waits for it."""
        super().check_integrity()
        there = self.on_device.cpu().numpy()
        places, blocks = self.missing()
        there[places] = blocks
        assert there[: self.nobody].tolist() == list(self.blocks), "the device has other tables"
        assert not there[self.nobody :].any(), "the device has blocks where nobody's are"

    def _write(self, begin: int, blocks: array[int]) -> None:
        super()._write(begin, blocks)
        self._missing.append((begin, begin + len(blocks)))

    def _widen(self, width: int) -> None:
        """Rows stay as they are: `change` lets no table in that is longer."""
