"""How many threads the CPU kernels compute with, and how many are left to torch.

They are as many as torch has until an engine says how many, and then as many in every thread: torch's count is each
thread's own, which keeps the one that it began with. An engine whose steps are all kernels takes them over. Torch's own
(OpenMP's) wait for more work by spinning, for milliseconds after every op that was worth sharing: beside them the next
step would have a core less.
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


def thread_count() -> int:
    """For a call of the kernels."""
    return torch.get_num_threads() if _kernels.threads is None else _kernels.threads


def share(count: int) -> None:
    """Let torch and the kernels have so many each, in this process."""
    torch.set_num_threads(count)
    _kernels.threads = count


def take_over() -> None:
    """Leave torch one thread, and the kernels those that it had."""
    _kernels.threads = thread_count()
    torch.set_num_threads(1)


@contextmanager
def lent() -> Iterator[None]:
    """For a while torch has as many as the kernels: to measure what it can do."""
    before = torch.get_num_threads()
    torch.set_num_threads(thread_count())
    try:
        yield
    finally:
        torch.set_num_threads(before)
