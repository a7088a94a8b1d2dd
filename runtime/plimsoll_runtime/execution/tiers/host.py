"""Host memory in slots of one KV block each: what a step copies to and from, and what the disk reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plimsoll_kernels.cpu.huge_pages import allocate, allocated
from plimsoll_runtime.execution.events import Event, device_event
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.tiers.pinned import pin


def host_bytes(slots: int, block_bytes: int) -> int:
    """Bytes that so many slots take, the one that is never used included."""
    return allocated((slots + 1) * block_bytes)


class HostBlocks:
    """Slots 1 .. slots beside a cache; slot 0 is never used. Pinned for a GPU, so that it copies by itself.

    `restored` marks the last restore in a GPU's work (None: an event of the cache's device, on a CPU none).
    Raises MemoryLimitError where they cannot be pinned.
    """

    def __init__(self, cache: KvCache, slots: int, *, restored: Event | None = None) -> None:
        self._cache = cache
        self.slots = slots
        self._memory = allocate((slots + 1, cache.block_bytes), torch.uint8)
        self._restored = restored or device_event(cache.device)
        if cache.device.type != "cpu":
            pin(self._memory, self, torch.cuda.cudart())  # type: ignore[no-untyped-call]

    def spill(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the cache to slots: (block, slot)."""
        self._cache.read_blocks(pairs, self._memory)

    def restore(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots to blocks of the cache: (slot, block). The slots are to stay as they are until `wait` returns."""
        self._cache.write_blocks(pairs, self._memory)
        if self._restored is not None:
            self._restored.record()

    def wait(self) -> None:
        """Until the slots of the last restore have been read: on a GPU its copies go on by themselves."""
        if self._restored is not None:
            self._restored.synchronize()

    def row(self, slot: int) -> memoryview:
        """A slot's bytes, `[block_bytes]`."""
        return memoryview(self._memory.numpy()[slot])
