"""Host memory in frames of one KV block each: what a step copies to and from, and what the disk reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plimsoll_kernels.cpu.huge_pages import allocate, allocated
from plimsoll_runtime.execution.events import Event, device_event
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.pinned import pin


def host_bytes(frames: int, block_bytes: int) -> int:
    """Bytes that so many frames take, the one that is never used included."""
    return allocated((frames + 1) * block_bytes)


class HostBlocks:
    """Frames 1 .. frames beside a cache; frame 0 is never used. Pinned for a GPU, so that it copies by itself.

    `restored` marks the last restore in a GPU's work (None: an event of the cache's device, on a CPU none).
    Raises MemoryLimitError where they cannot be pinned.
    """

    def __init__(self, cache: KvCache, frames: int, *, restored: Event | None = None) -> None:
        self._cache = cache
        self.frames = frames
        self._memory = allocate((frames + 1, cache.block_bytes), torch.uint8)
        self._restored = restored or device_event(cache.device)
        if cache.device.type != "cpu":
            pin(self._memory, self, torch.cuda.cudart())  # type: ignore[no-untyped-call]

    def spill(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the cache to frames: (block, frame)."""
        self._cache.read_blocks(pairs, self._memory)

    def restore(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy frames to blocks of the cache: (frame, block). They are to stay as they are until `wait` returns."""
        self._cache.write_blocks(pairs, self._memory)
        if self._restored is not None:
            self._restored.record()

    def wait(self) -> None:
        """Until the frames of the last restore have been read: on a GPU its copies go on by themselves."""
        if self._restored is not None:
            self._restored.synchronize()

    def row(self, frame: int) -> memoryview:
        """A frame's bytes, `[block_bytes]`."""
        return memoryview(self._memory.numpy()[frame])
