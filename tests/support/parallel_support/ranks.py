"""Ranks of a parallel group as threads of one process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.links import SocketLink

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
    return on_layout(Layout(ranks), lambda joined, rank: run(joined.group, rank))


@dataclass(frozen=True)
class JoinedRank:
    """The exchanges of a rank: with all ranks, with those of its stage, and the link to the stages next to it."""

    group: ThreadCollectives
    stage: ThreadCollectives
    link: SocketLink


def on_layout(layout: Layout, run: Callable[[JoinedRank, int], Result]) -> Sequence[Result]:
    """Run a function in a thread for each rank of a layout and return the results in the order of the ranks.

    Stages are linked by pairs of sockets, which are closed at the end of each rank.
    """
    group, stages = Meeting(layout.size), [Meeting(layout.tensor) for _ in range(layout.stages)]
    ends: dict[tuple[int, int], socket.socket] = {}
    for rank in range(layout.size):
        if (after := layout.after(rank)) is not None:
            ends[rank, after], ends[after, rank] = socket.socketpair()

    def of_rank(rank: int) -> Result:
        before, after = (
            None if other is None else ends[rank, other] for other in (layout.before(rank), layout.after(rank))
        )
        stage = ThreadCollectives(stages[layout.stage(rank)], layout.shard(rank))
        try:
            return run(JoinedRank(ThreadCollectives(group, rank), stage, SocketLink(before, after)), rank)
        except BaseException:
            for meeting in (group, *stages):
                meeting.abort()
            for each in ends.values():
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            raise

    with ThreadPoolExecutor(layout.size) as pool:
        try:
            return list(pool.map(of_rank, range(layout.size)))
        finally:
            for each in ends.values():
                each.close()
