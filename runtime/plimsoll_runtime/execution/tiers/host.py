"""Host memory in frames of one KV block each: what a step copies to and from, and what the disk reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import allocate, allocated
from plimsoll_runtime.engine.tiers.runs import runs
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.pinned import pin
from plimsoll_runtime.execution.tiers.step_copies import StepCopies
from plimsoll_runtime.execution.tiers.streams import Streams, streams_of


def host_bytes(frames: int, block_bytes: int) -> int:
    """Bytes that so many frames take, the one that is never used included."""
    return allocated((frames + 1) * block_bytes)


class HostBlocks:
    """Frames 1 .. frames beside a cache; frame 0 is never used. Pinned for a GPU, so that it copies by itself.

    `copies`: where a device copies behind the host's back; a frame is the step's that has it copied until they are over
    (see FrameCopies). Such a device is given by its `streams` (None: as the cache's device has them, on a CPU none).
    Raises MemoryLimitError where frames cannot be pinned.
    """

    def __init__(self, cache: KvCache, frames: int, *, streams: Streams | None = None) -> None:
        self._cache = cache
        self.frames = frames
        self._memory = allocate((frames + 1, cache.block_bytes), torch.uint8)
        self._rows = self._memory.view(cache.dtype)
        streams = streams or streams_of(cache.device)
        self.copies = None if streams is None else StepCopies(streams)
        if cache.device.type != "cpu" and self.copies is not None:
            pin(self._memory, self, torch.cuda.cudart(), self.copies.drain)  # type: ignore[no-untyped-call]

    def move(
        self,
        spills: Sequence[tuple[int, int]] = (),
        restores: Sequence[tuple[int, int]] = (),
        idle_steps: int = 0,
    ) -> None:
        """Copy blocks of the cache to frames (block, frame), then frames to blocks (frame, block): see StepPlan."""
        if self.copies is not None:
            self.copies.copy(self._pairs(spills, restores), idle_steps)
            return
        for target, source in self._pairs(spills, restores):
            target.copy_(source)

    def row(self, frame: int) -> memoryview:
        """A frame's bytes, `[block_bytes]`."""
        return memoryview(self._memory.numpy()[frame])

    def _pairs(
        self, spills: Sequence[tuple[int, int]], restores: Sequence[tuple[int, int]]
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """(target, source) of as few copies as they lie."""
        rows, cache = self._rows, self._cache
        for block, frame, length in runs(spills):
            yield rows[frame : frame + length], cache.blocks(block, length)
        for frame, block, length in runs(restores):
            yield cache.blocks(block, length), rows[frame : frame + length]
