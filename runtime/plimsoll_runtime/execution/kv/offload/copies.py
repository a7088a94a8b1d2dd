"""Copies between device and host memory for steps, ordered by events on two streams without a wait on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in a stream, as `torch.cuda.Event`. It may be set again; earlier waits then still wait for the earlier
    point.
    """

    def query(self) -> bool:
        """Return whether the device has reached the point."""


class Streams(Protocol):
    """The streams of a device. Calls only enqueue work; `drain` alone waits."""

    def mark(self) -> Mark:
        """Return a point that is not set yet."""

    def computed(self, mark: Mark) -> None:
        """Set the point after all computation launched so far."""

    def copied(self, mark: Mark) -> None:
        """Set the point after all copies launched so far."""

    def compute_behind(self, mark: Mark) -> None:
        """Make computation launched from here on wait for a point."""

    def copy_behind(self, mark: Mark) -> None:
        """Make copies launched from here on wait for a point."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Copy (target, source) pairs between the device and pinned memory, in order."""

    def drain(self) -> None:
        """Wait on the host for all copies."""


class CudaStreams:
    """The streams of a CUDA or ROCm device: the caller's current one, and one more for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def _compute(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def mark(self) -> Mark:
        event: Mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event

    def computed(self, mark: Mark) -> None:
        self._compute.record_event(mark)

    def copied(self, mark: Mark) -> None:
        self._copies.record_event(mark)

    def compute_behind(self, mark: Mark) -> None:
        self._compute.wait_event(mark)

    def copy_behind(self, mark: Mark) -> None:
        self._copies.wait_event(mark)

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        with torch.cuda.stream(self._copies):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def drain(self) -> None:
        self._copies.synchronize()


def streams_of(device: torch.device) -> Streams | None:
    """Return the streams of a device; None for a CPU, whose copies are complete when they return."""
    return None if device.type == "cpu" else CudaStreams(device)


STEPS_KNOWN = 2
"""The number of latest steps whose start has a mark: one is computed and one launched after it."""


class StepCopies:
    """Implements `FrameCopies`. One thread launches steps; another may ask how many are over.

    The device waits in three places, the host in none. A step's copies start when the steps that use its blocks are
    computed; copies are done in the order of the steps; and the step itself starts when its copies are over. Since each
    copy follows all earlier ones, a block may be restored from a frame that is still being filled.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._begun = deque([streams.mark() for _ in range(STEPS_KNOWN)], STEPS_KNOWN)
        self._under_way: deque[Mark] = deque()
        self._passed: deque[Mark] = deque()
        self._steps_over = 0

    @property
    def steps_over(self) -> int:
        """The number of steps with copies whose copies are over, since the start. It stops growing if the device has
        failed; that step's result raises.
        """
        while self._under_way and _passed(self._under_way[0]):
            self._passed.append(self._under_way.popleft())
            self._steps_over += 1
        return self._steps_over

    def begin_step(self) -> None:
        """Set the point after all computation launched so far: here the next step begins."""
        self._begun.rotate(-1)
        self._streams.computed(self._begun[-1])

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]], idle_steps: int) -> None:
        """Copy (target, source) pairs for the step that is launched next, in parallel with up to `idle_steps` steps
        before it.
        """
        self._streams.copy_behind(self._begun[-1 - min(idle_steps, STEPS_KNOWN - 1)])
        self._streams.copy(pairs)
        mark = self._passed.popleft() if self._passed else self._streams.mark()
        self._streams.copied(mark)
        self._streams.compute_behind(mark)
        self._under_way.append(mark)

    def drain(self) -> None:
        """Wait for all started copies."""
        self._streams.drain()

    def check_integrity(self) -> None:
        """Raise AssertionError if a mark is in two places."""
        marks = [id(mark) for mark in (*self._begun, *self._under_way, *self._passed)]
        assert len(set(marks)) == len(marks), "a mark is set again before it was passed"
        assert len(self._begun) == STEPS_KNOWN, "a step is forgotten too early"


def _passed(mark: Mark) -> bool:
    try:
        return mark.query()
    except RuntimeError:
        return False
