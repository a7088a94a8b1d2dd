"""Host memory in frames of one KV block, pinned for GPUs, and copies of blocks in few runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import allocate, allocated
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.errors import MemoryLimitError
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.copies import StepCopies, Streams, streams_of

PORTABLE = 1
"""Pinned for all of the process's contexts."""


class HostRegistry(Protocol):
    """The part of `torch.cuda.cudart()` that is used here, for ROCm too; each call returns an error's number or 0."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        """Lock pages."""

    def cudaHostUnregister(self, pointer: int) -> int:
        """Unlock what was locked from this address on."""


def pin(memory: Tensor, owner: object, registry: HostRegistry, drain: Callable[[], None]) -> None:
    """Pin contiguous memory until its owner, who must hold it, is gone. Raises MemoryLimitError where that cannot be.

    `drain`, which must not hold the owner, waits for copies that are under way: it is called before memory is unpinned.
    There is no going on without: the runtime keeps the error and raises it from a later call that has none.

    torch's own pinned memory comes in powers of two: 40 GiB that are asked for take 64. Registered memory takes its own
    pages and no more. The driver locks all of them at once until they are unregistered. These calls were tried against
    a stand-in for the runtime's library, not on a GPU.
    """
    _register(memory, registry, "lower --kv-host-memory, or ")
    # When the process ends its pages go in any case, and the runtime may have gone before them.
    weakref.finalize(owner, _unpin, memory.data_ptr(), registry, drain).atexit = False


@contextmanager
def pinned(memory: Tensor, registry: HostRegistry) -> Iterator[None]:
    """Pin contiguous memory for a while, in which whoever copies from it also waits. Raises as `pin` does."""
    _register(memory, registry, "")
    try:
        yield
    finally:
        registry.cudaHostUnregister(memory.data_ptr())


def _unpin(pointer: int, registry: HostRegistry, drain: Callable[[], None]) -> None:
    try:
        drain()
    finally:
        registry.cudaHostUnregister(pointer)


def _register(memory: Tensor, registry: HostRegistry, advice: str) -> None:
    error = int(registry.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE))
    if error:
        raise MemoryLimitError(
            f"{memory.nbytes / 2**30:.2f} GiB of host memory cannot be pinned for the GPU (CUDA error {error}); "
            f"{advice}allow more locked memory (ulimit -l, the container's memory limit)"
        )


class Run(NamedTuple):
    """Blocks that lie one behind the other where they come from, and where they go to."""

    source: int
    target: int
    length: int


def runs(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """(source, target) of single blocks as runs, in any order. Of several sources of one target the last counts."""
    found: list[Run] = []
    sources = {target: source for source, target in pairs}
    for offset, source in sorted((target - source, source) for target, source in sources.items()):
        last = found[-1] if found else None
        if last is not None and last.target - last.source == offset and last.source + last.length == source:
            found[-1] = last._replace(length=last.length + 1)
        else:
            found.append(Run(source, source + offset, 1))
    return found


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

    def begin(self, plan: StepPlan) -> None:
        """Copy the blocks that a plan spills and restores. Call it for every step."""
        if self.copies is not None:
            self.copies.begin_step()
        if plan.spills or plan.restores:
            self.move(plan.spills, plan.restores, plan.idle_steps)

    def move(
        self, spills: Sequence[tuple[int, int]] = (), restores: Sequence[tuple[int, int]] = (), idle_steps: int = 0
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
