"""The numbers of threads of the CPU kernels and of torch.

Until an engine sets the number, the kernels use as many threads as torch; afterwards the number applies to all threads
of the process, because torch's number is local to each thread. An engine whose steps only use kernels takes torch's
threads over: torch's own (OpenMP's) wait for work by spinning, for milliseconds after every parallel op, and would take
a core from the next step. If a process has several engines, each sets its own share before a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class _Kernels:
    threads: int | None = None
    """None: torch's number."""


_kernels = _Kernels()


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """The numbers of threads that an engine's steps use in the CPU kernels and in torch."""

    kernels: int
    torch: int

    def take(self) -> None:
        """Use these numbers from here on; torch's applies to the calling thread."""
        _kernels.threads = self.kernels
        if torch.get_num_threads() != self.torch:
            torch.set_num_threads(self.torch)


def thread_count() -> int:
    """Return the number of threads for a call of the kernels."""
    return torch.get_num_threads() if _kernels.threads is None else _kernels.threads


def share(count: int) -> ThreadShare:
    """Let torch and the kernels use `count` threads each, in this process."""
    shared = ThreadShare(kernels=count, torch=count)
    shared.take()
    return shared


def take_over() -> ThreadShare:
    """Let torch use one thread, and the kernels as many as before."""
    taken = ThreadShare(kernels=thread_count(), torch=1)
    taken.take()
    return taken


@contextmanager
def lent() -> Iterator[None]:
    """Give torch as many threads as the kernels within the `with` block, to measure it."""
    before = torch.get_num_threads()
    torch.set_num_threads(thread_count())
    try:
        yield
    finally:
        torch.set_num_threads(before)
