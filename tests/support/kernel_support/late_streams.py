"""Two streams of a device on a CPU, each of which does its work when a test says so, and not before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from torch import Tensor

from plimsoll_runtime.execution.kv.offload.copies import Mark

Work = Callable[[], bool]
"""Is tried until it says that it was done."""


class LateMark:
    """A point that is set so many times, and has been come to so many times."""

    def __init__(self) -> None:
        self.set = 0
        self.reached = 0

    def query(self) -> bool:
        """See Mark."""
        return self.reached == self.set


class LateStreams:
    """See Streams. `compute` is what was launched to be computed, `copies` what was launched beside it."""

    def __init__(self) -> None:
        self.compute: deque[Work] = deque()
        self.copies: deque[Work] = deque()
        self.copied_at_once: list[int] = []

    def launch(self, work: Callable[[], None]) -> None:
        """Have something computed."""

        def done() -> bool:
            work()
            return True

        self.compute.append(done)

    def go_on(self, stream: deque[Work]) -> bool:
        """Do the next work of a stream; False where there is none, or it has to wait."""
        if not stream or not stream[0]():
            return False
        stream.popleft()
        return True

    def go_on_to_the_end(self) -> None:
        """Do all of both."""
        while self.go_on(self.copies) or self.go_on(self.compute):
            pass
        assert not self.compute, "the device waits for itself"
        assert not self.copies, "the device waits for itself"

    def mark(self) -> Mark:
        """See Streams."""
        return LateMark()

    def computed(self, mark: Mark) -> None:
        """See Streams."""
        self.compute.append(_setting(mark))

    def copied(self, mark: Mark) -> None:
        """See Streams."""
        self.copies.append(_setting(mark))

    def compute_behind(self, mark: Mark) -> None:
        """See Streams."""
        self.compute.append(_waiting(mark))

    def copy_behind(self, mark: Mark) -> None:
        """See Streams."""
        self.copies.append(_waiting(mark))

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """See Streams."""
        for target, source in pairs:
            self.copied_at_once.append(len(source))
            self.copies.append(_copying(target, source))

    def drain(self) -> None:
        """See Streams."""
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
