"""Two streams of a device on a CPU, which do their work only when a test tells them to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from torch import Tensor

from plimsoll_runtime.execution.kv.offload.copies import Mark

Work = Callable[[], bool]
"""Work that is tried until it returns True."""


class LateMark:
    """A point with the number of times it was set and the number of times it was reached."""

    def __init__(self) -> None:
        self.set = 0
        self.reached = 0

    def query(self) -> bool:
        return self.reached == self.set


class LateStreams:
    """Implements `Streams`. `compute` is the launched computation, `copies` are the copies."""

    def __init__(self) -> None:
        self.compute: deque[Work] = deque()
        self.copies: deque[Work] = deque()
        self.copied_at_once: list[int] = []

    def launch(self, work: Callable[[], None]) -> None:
        """Launch computation."""

        def done() -> bool:
            work()
            return True

        self.compute.append(done)

    def go_on(self, stream: deque[Work]) -> bool:
        """Do the next work of a stream; return False if there is none, or it must wait."""
        if not stream or not stream[0]():
            return False
        stream.popleft()
        return True

    def go_on_to_the_end(self) -> None:
        """Do all work of both streams."""
        while self.go_on(self.copies) or self.go_on(self.compute):
            pass
        assert not self.compute, "the device waits for itself"
        assert not self.copies, "the device waits for itself"

    def mark(self) -> Mark:
        return LateMark()

    def computed(self, mark: Mark) -> None:
        self.compute.append(_setting(mark))

    def copied(self, mark: Mark) -> None:
        self.copies.append(_setting(mark))

    def compute_behind(self, mark: Mark) -> None:
        self.compute.append(_waiting(mark))

    def copy_behind(self, mark: Mark) -> None:
        self.copies.append(_waiting(mark))

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        for target, source in pairs:
            self.copied_at_once.append(len(source))
            self.copies.append(_copying(target, source))

    def drain(self) -> None:
        self.go_on_to_the_end()


def _copying(target: Tensor, source: Tensor) -> Work:
    return lambda: target.copy_(source) is target


def _setting(mark: Mark) -> Work:
    assert isinstance(mark, LateMark)
    mark.set += 1
    number = mark.set

    def work() -> bool:
        mark.reached = number
        return True

    return work


def _waiting(mark: Mark) -> Work:
    assert isinstance(mark, LateMark)
    number = mark.set
    return lambda: mark.reached >= number
