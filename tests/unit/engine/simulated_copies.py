"""A device that copies to and from frames of host memory behind the host's back, when a test or chance has it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Step(NamedTuple, Generic[T]):
    """What a step leaves in frames, and what it must find in those that it reads until it is over."""

    filled: dict[int, T]
    read: dict[int, T]


class SimulatedCopies(Generic[T]):
    """See FrameCopies: between `frames` and a device, in the order of the steps.

    A frame holds what is `unknown` from when a step is launched that fills it until that step's copies are over. Unless
    it `lags` they are over at once, else when `pass_steps` says so. Whoever writes to a frame too early is found out.
    """

    def __init__(self, frames: dict[int, T], unknown: Callable[[], T]) -> None:
        self.lags = False
        self.steps_over = 0
        self._frames = frames
        self._unknown = unknown
        self._under_way: deque[_Step[T]] = deque()

    def launch(self, filled: dict[int, T], read: Iterable[int]) -> dict[int, T]:
        """A step fills these frames, and then reads some: what it finds there."""
        for frame in filled:
            self._frames[frame] = self._unknown()
        self._under_way.append(step := _Step(filled, {}))
        for frame in read:
            step.read[frame] = self._newest(frame)
        if not self.lags:
            self.pass_steps(1)
        return step.read

    def pass_steps(self, count: int) -> None:
        """The copies of so many steps are over, if there are so many."""
        for _ in range(min(count, len(self._under_way))):
            step = self._under_way.popleft()
            for frame, contents in step.filled.items():
                assert self._frames[frame] == self._unknown(), "somebody writes to a frame that is being filled"
                self._frames[frame] = contents
            for frame, contents in step.read.items():
                assert self._frames[frame] == contents, "somebody writes to a frame that is being read"
            self.steps_over += 1

    @property
    def under_way(self) -> int:
        """Steps whose copies are not over."""
        return len(self._under_way)

    def _newest(self, frame: int) -> T:
        fills = [step.filled[frame] for step in self._under_way if frame in step.filled]
        return fills[-1] if fills else self._frames[frame]
