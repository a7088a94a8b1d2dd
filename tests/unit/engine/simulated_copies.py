"""A device that copies to and from frames of host memory asynchronously, at times that a test or chance decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Step(NamedTuple, Generic[T]):
    """The contents that a step writes to frames, and those that it must find in the frames it reads."""

    filled: dict[int, T]
    read: dict[int, T]


class SimulatedCopies(Generic[T]):
    """`FrameCopies` between `frames` and a device, in step order.

    A frame holds `unknown` from the launch of a step that fills it until that step's copies end. Without `lags` they
    end immediately, else with `pass_steps`. Writing to a frame too early fails the test.
    """

    def __init__(self, frames: dict[int, T], unknown: Callable[[], T]) -> None:
        self.lags = False
        self.steps_over = 0
        self._frames = frames
        self._unknown = unknown
        self._under_way: deque[_Step[T]] = deque()

    def launch(self, filled: dict[int, T], read: Iterable[int]) -> dict[int, T]:
        """Launch a step that fills frames and then reads others; return the contents that it reads."""
        for frame in filled:
            self._frames[frame] = self._unknown()
        self._under_way.append(step := _Step(filled, {}))
        for frame in read:
            step.read[frame] = self._newest(frame)
        if not self.lags:
            self.pass_steps(1)
        return step.read

    def pass_steps(self, count: int) -> None:
        """End the copies of up to `count` steps."""
        for _ in range(min(count, len(self._under_way))):
            step = self._under_way.popleft()
            for frame, contents in step.filled.items():
                assert self._frames[frame] == self._unknown(), "a frame is written while it is being filled"
                self._frames[frame] = contents
            for frame, contents in step.read.items():
                assert self._frames[frame] == contents, "a frame is written while it is being read"
            self.steps_over += 1

    @property
    def under_way(self) -> int:
        """Number of steps whose copies have not ended."""
        return len(self._under_way)

    def _newest(self, frame: int) -> T:
        fills = [step.filled[frame] for step in self._under_way if frame in step.filled]
        return fills[-1] if fills else self._frames[frame]
