"""How many threads the CPU kernels compute with, and how many are left to torch.

They are as many as torch has until an engine says how many, and then as many in every thread: torch's count is each
thread's own, which keeps the one that it began with. An engine whose steps are all kernels takes them over. Torch's own
(OpenMP's) wait for more work by spinning, for milliseconds after every op that was worth sharing: beside them the next
step would have a core less. Of several engines in a process each takes its own share before a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class _Kernels:
    threads: int | None = None
    """None: torch's."""


_kernels = _Kernels()


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """Threads that an engine's steps compute with."""

    kernels: int
    torch: int

    def take(self) -> None:
        """Compute with these from now on, in the thread that calls."""
        _kernels.threads = self.kernels
        if torch.get_num_threads() != self.torch:
            torch.set_num_threads(self.torch)


def thread_count() -> int:
    """For a call of the kernels."""
    return torch.get_num_threads() if _kernels.threads is None else _kernels.threads


def share(count: int) -> ThreadShare:
    """Let torch and the kernels have so many each, in this process."""
    shared = ThreadShare(kernels=count, torch=count)
    shared.take()
    return shared


def take_over() -> ThreadShare:
    """Leave torch one thread, and the kernels those that it had."""
    taken = ThreadShare(kernels=thread_count(), torch=1)
    taken.take()
    return taken


@contextmanager
def lent() -> Iterator[None]:
    """For a while torch has as many as the kernels: to measure what it can do."""
    before = torch.get_num_threads()
    torch.set_num_threads(thread_count())
    try:
        yield
    finally:
        torch.set_num_threads(before)
