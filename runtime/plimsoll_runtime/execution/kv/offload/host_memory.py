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
"""Pinned for all CUDA contexts of the process."""


class HostRegistry(Protocol):
    """The part of `torch.cuda.cudart()` that is used here, also for ROCm; each call returns an error number or 0."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        """Pin the `size` bytes from the address `pointer` on."""

    def cudaHostUnregister(self, pointer: int) -> int:
        """Unpin the memory that was pinned from this address on."""


def pin(memory: Tensor, owner: object, registry: HostRegistry, drain: Callable[[], None]) -> None:
    """Pin contiguous memory until its owner, who must hold it, is freed. Raises MemoryLimitError if that fails.

    `drain`, which must not hold the owner, waits for running copies: it is called before memory is unpinned. A failure
    cannot be ignored: the CUDA runtime keeps the error and raises it from a later call.

    torch's own pinned memory is rounded up to powers of two: 40 GiB take 64. Registered memory takes only its own
    pages. The driver locks all of them until they are unregistered. These calls were tested with a fake of the
    runtime's library, not on a GPU.
    """
    _register(memory, registry, "lower --kv-host-memory, or ")
    # When the process ends, its pages are freed in any case, and the CUDA runtime may be gone before.
    weakref.finalize(owner, _unpin, memory.data_ptr(), registry, drain).atexit = False


@contextmanager
def pinned(memory: Tensor, registry: HostRegistry) -> Iterator[None]:
    """Pin contiguous memory within a `with` block, whose body waits for its copies. Raises as `pin` does."""
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
            f"cannot pin {memory.nbytes / 2**30:.2f} GiB of host memory for the GPU (CUDA error {error}); "
            f"{advice}allow more locked memory (ulimit -l, the container's memory limit)"
        )


class Run(NamedTuple):
    """Blocks that are contiguous both in the source and in the target."""

    source: int
    target: int
    length: int


def runs(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Join (source, target) pairs of blocks into runs, in any order. If a target has several sources, the last
    counts.
    """
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
    """Return the bytes of host memory for `frames` frames, and for frame 0, which is never used."""
    return allocated((frames + 1) * block_bytes)


class HostBlocks:
    """Frames 1 .. frames in host memory for a cache; frame 0 is never used. Pinned for a GPU, which copies
    asynchronously.

    `copies`: the asynchronous copies of the device, None if its copies are complete when they return (a CPU). Until
    they are over, a frame belongs to the step that copies it (see FrameCopies). `streams`: of the device; None: chosen
    by the cache's device. Raises MemoryLimitError if frames cannot be pinned.
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
        """Return a frame's bytes, `[block_bytes]`."""
        return memoryview(self._memory.numpy()[frame])

    def _pairs(
        self, spills: Sequence[tuple[int, int]], restores: Sequence[tuple[int, int]]
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield (target, source) tensors, one pair for each run of blocks."""
        rows, cache = self._rows, self._cache
        for block, frame, length in runs(spills):
            yield rows[frame : frame + length], cache.blocks(block, length)
        for frame, block, length in runs(restores):
            yield cache.blocks(block, length), rows[frame : frame + length]
