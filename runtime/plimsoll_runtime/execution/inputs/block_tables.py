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

    def __init__(self, num_slots: int, num_blocks: int, *, noted_up_to: int | None = None) -> None:
        """For so many slots, and a cache of `num_blocks` blocks.

        `noted_up_to`: somebody takes what is written, and where; rows have so many columns then, and never more.
        """
        self.width = noted_up_to or FEWEST
        self.blocks = array("i", bytes(4 * num_slots * self.width))
        self.firsts = array("q", [0] * num_slots)
        self.begins = array("q", [slot * self.width for slot in range(num_slots)])
        self.counts = array("q", [0] * num_slots)
        self._num_blocks = num_blocks
        self._written: list[tuple[int, int]] | None = None if noted_up_to is None else []

    def change(self, slot: int, change: TableChange) -> None:
        """Have a slot's table as a plan says. Raises ValueError for a change that does not fit to what is kept, for
        blocks that the cache has not, and for more of them than rows have columns, where these stay as they are.
        """
        first, start, blocks = change.first, change.start, change.blocks
        if blocks and not 0 <= min(blocks) <= max(blocks) < self._num_blocks:
            raise ValueError(f"a block table names a block outside 0..{self._num_blocks - 1}")
        kept = start - first
        if self._written is not None and kept + len(blocks) > self.width:
            raise ValueError(f"a table of {kept + len(blocks)} blocks, for which rows have {self.width} columns")
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

    def take_written(self) -> list[tuple[int, int]]:
        """From where to where in `blocks` was written since the last call."""
        assert self._written is not None, "nobody was to ask"
        written, self._written = self._written, []
        return written

    def _write(self, begin: int, blocks: array[int]) -> None:
        end = begin + len(blocks)
        self.blocks[begin:end] = blocks
        if self._written is not None:
            self._written.append((begin, end))

    def _make_room(self, slot: int, kept: int) -> None:
        """Move the first `kept` blocks of a slot to where all of its table fits in its row.

        Rows are made longer, if they may be, unless the table is at most half as long: then it comes to the end again
        only after as many blocks more.
        """
        if 2 * self.counts[slot] > self.width and self._written is None:
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


class DeviceBlockTables:
    """The rows of a group's tables, int32 on a device, to which each step sends what was written since the last.

    They stay where they are, so that graphs can read and write them. Behind them is a row that belongs to nobody, all
    of it block 0, from `nobody` on.
    """

    def __init__(self, kept: BlockTableState, device: torch.device) -> None:
        """The one copy on a device of tables that note what is written."""
        self._kept = kept
        self._missing: list[tuple[int, int]] = []
        self.nobody = len(kept.blocks)
        self.blocks = torch.zeros(self.nobody + kept.width, dtype=torch.int32, device=device)

    def missing(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places [N] of what was written and is not there yet, and the blocks that belong there [N].

        They are missing until somebody says that they are `told`: a pass that broke off may not have written them.
        """
        self._missing += self._kept.take_written()
        begins = np.array([begin for begin, _ in self._missing], dtype=np.int64)
        if any(end - begin != 1 for begin, end in self._missing):
            begins = np.concatenate([np.arange(begin, end) for begin, end in self._missing])
        return begins, np.frombuffer(self._kept.blocks, np.int32)[begins].astype(np.int64)

    def told(self) -> None:
        """What was missing is there, or will be when what was launched so far is done."""
        self._missing.clear()

    def add_to(self, outbox: UploadBuffer) -> UploadSlice | None:
        """Have what is missing sent with the rest of a step; None where nothing is."""
        places, blocks = self.missing()
        return outbox.add(np.concatenate([places, blocks])) if places.size else None

    def receive(self, parcel: UploadSlice | None) -> None:
        """Write what was sent."""
        if parcel is not None:
            places, blocks = parcel.there.view(2, -1).unbind()
            self.blocks.index_copy_(0, places, blocks.to(torch.int32))
        self.told()

    def check_integrity(self) -> None:
        """Raises AssertionError where what is on the device, or is still missing there, is not what is kept. It waits
        for the device.
        """
        there = self.blocks.cpu().numpy()
        places, blocks = self.missing()
        there[places] = blocks
        assert there[: self.nobody].tolist() == list(self._kept.blocks), "the device has other tables"
        assert not there[self.nobody :].any(), "the device has blocks where nobody's are"
