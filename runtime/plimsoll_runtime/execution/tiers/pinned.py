"""Host memory that a GPU copies to and from by itself: plain memory, registered with its driver.

torch's own pinned memory comes in powers of two: 40 GiB that are asked for take 64. What is registered takes its own
pages and no more. The driver locks them all at once, and does not take them back until they are unregistered.

The calls were tried against a stand-in for the runtime's library, not on a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from plimsoll_runtime.errors import MemoryLimitError

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
