"""Copies of steps between a device and host memory, ordered by marks in its streams: nobody waits for them here.

Three waits are told to the device, and none is the host's. A step's copies begin when the steps are computed that use
its blocks; they are done in the order of the steps; and the step itself begins when they are over. Since each copy lies
behind all earlier ones, a block may come back from a frame that is still being filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from torch import Tensor

from plimsoll_runtime.execution.tiers.streams import Mark, Streams

STEPS_KNOWN = 2
"""Of so many steps it is known when the device comes to them: one is computed and one launched behind it."""


class StepCopies:
    """See FrameCopies. Steps are launched by one thread, and another may ask how many are over."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._begun = deque([streams.mark() for _ in range(STEPS_KNOWN)], STEPS_KNOWN)
        self._under_way: deque[Mark] = deque()
        self._passed: deque[Mark] = deque()
        self._steps_over = 0

    @property
    def steps_over(self) -> int:
        """See FrameCopies. Where the device has failed no more are over: the step that it fails says so."""
        while self._under_way and _passed(self._under_way[0]):
            self._passed.append(self._under_way.popleft())
            self._steps_over += 1
        return self._steps_over

    def begin_step(self) -> None:
        """All before the next step has been launched."""
        self._begun.rotate(-1)
        self._streams.computed(self._begun[-1])

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], idle_steps: int) -> None:
        """Have (target, source) copied for the step that is launched next, beside up to `idle_steps` before it."""
        self._streams.copy_behind(self._begun[-1 - min(idle_steps, STEPS_KNOWN - 1)])
        self._streams.copy(pairs)
        mark = self._passed.popleft() if self._passed else self._streams.mark()
        self._streams.copied(mark)
        self._streams.compute_behind(mark)
        self._under_way.append(mark)

    def drain(self) -> None:
        """Wait for all that was begun."""
        self._streams.drain()

    def check_integrity(self) -> None:
        """Raises AssertionError where a mark is in two places."""
        marks = [id(mark) for mark in (*self._begun, *self._under_way, *self._passed)]
        assert len(set(marks)) == len(marks), "a mark is set again before it was passed"
        assert len(self._begun) == STEPS_KNOWN, "a step is forgotten too early"


def _passed(mark: Mark) -> bool:
    try:
        return mark.query()
    except RuntimeError:
        return False
