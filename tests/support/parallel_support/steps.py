"""Ranks of a group for tests of the engine process's side: threads that answer plans over sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, Report, encoded

Answer = Callable[[StepPlan], Report | None]
"""Returns a rank's report of a plan; None closes its channel instead, as the end of its process does."""


class FakeLink:
    """A rank's process, as the engine process sees it."""

    def __init__(self, number: int, end: socket.socket) -> None:
        self.number = number
        self.name = str(number)
        self.channel = Channel(end, Report)
        self.sums = 0
        self.shown = 0

    def show_stacks(self) -> None:
        self.shown += 1

    def death(self) -> EngineDeadError:
        return EngineDeadError(f"rank {self.number} has ended")

    def failure(self, report: Report) -> Exception:
        return EngineDeadError(f"rank {self.number} failed with {type(report).__name__}")


@contextlib.contextmanager
def answering(answers: Sequence[Answer]) -> Iterator[list[FakeLink]]:
    """Start a thread for each rank, which answers the plans that arrive until its channel is closed."""
    pairs = [socket.socketpair() for _ in answers]
    links = [FakeLink(number, ours) for number, (ours, _) in enumerate(pairs)]
    with ThreadPoolExecutor(len(answers)) as pool:
        ranks = [pool.submit(_serve, theirs, answer) for (_, theirs), answer in zip(pairs, answers, strict=True)]
        try:
            yield links
        finally:
            for link in links:
                link.channel.close()
        for rank in ranks:
            rank.result()


def _serve(end: socket.socket, answer: Answer) -> None:
    channel = Channel(end, StepPlan)
    with contextlib.suppress(ChannelClosed):
        while (report := answer(channel.receive())) is not None:
            channel.send(encoded(report))
    channel.close()
