"""Ranks of a parallel group as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
SECONDS = 60.0


class Meeting:
    """Exchanges tensors between the threads of ranks, which call it in the same order."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._parts: list[Tensor | None] = [None] * ranks

    def exchanged(self, rank: int, part: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in their order."""
        self._parts[rank] = part.clone()
        self._barrier.wait(SECONDS)
        parts = [part for part in self._parts if part is not None]
        assert len(parts) == len(self._parts)
        self._barrier.wait(SECONDS)
        return parts

    def abort(self) -> None:
        """Raise BrokenBarrierError in all threads that wait."""
        self._barrier.abort()


class ThreadCollectives:
    """The exchange of one rank, for tests."""

    device = torch.device("cpu")

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    @property
    def exchange(self) -> None:
        return None

    def add_up(self, part: Tensor) -> None:
        assert part.dtype is torch.float32
        first, *others = self._meeting.exchanged(self._rank, part)
        for other in others:
            first = first + other
        part.copy_(first)

    def gathered(self, data: bytes) -> list[bytes]:
        parts = self._meeting.exchanged(self._rank, torch.tensor(list(data), dtype=torch.uint8))
        return [bytes(part.tolist()) for part in parts]


def on_ranks(ranks: int, run: Callable[[ThreadCollectives, int], Result]) -> Sequence[Result]:
    """Run a function in a thread for each rank and return the results in the order of the ranks."""
    meeting = Meeting(ranks)

    def of_rank(rank: int) -> Result:
        try:
            return run(ThreadCollectives(meeting, rank), rank)
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(of_rank, range(ranks)))
