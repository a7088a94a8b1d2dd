"""Copies between device and host memory for steps, ordered by events on two streams without a wait on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in a stream, as `torch.cuda.Event` has it. It may be set anew: who waits for it waits for what it was."""

    def query(self) -> bool:
        """Whether the device has come here."""


class Streams(Protocol):
    """Everything here is only told to the device, and over when the device has come to it. `drain` alone waits."""

    def mark(self) -> Mark:
        """A point that is still to be set."""

    def computed(self, mark: Mark) -> None:
        """Set it behind all that was launched to compute."""

    def copied(self, mark: Mark) -> None:
        """Set it behind all copies."""

    def compute_behind(self, mark: Mark) -> None:
        """What is launched from here on waits until the device has come to a mark."""

    def copy_behind(self, mark: Mark) -> None:
        """Copies from here on wait until the device has come to a mark."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Copies (target, source) between the device and pinned memory, one after the other."""

    def drain(self) -> None:
        """Wait for all copies, here and now."""


class CudaStreams:
    """Those of a CUDA or ROCm device: the caller's current one, and one more for copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def _compute(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def mark(self) -> Mark:
        """See Streams."""
        event: Mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event

    def computed(self, mark: Mark) -> None:
        """See Streams."""
        self._compute.record_event(mark)

    def copied(self, mark: Mark) -> None:
        """See Streams."""
        self._copies.record_event(mark)

    def compute_behind(self, mark: Mark) -> None:
        """See Streams."""
        self._compute.wait_event(mark)

    def copy_behind(self, mark: Mark) -> None:
        """See Streams."""
        self._copies.wait_event(mark)

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """See Streams."""
        with torch.cuda.stream(self._copies):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def drain(self) -> None:
        """See Streams."""
        self._copies.synchronize()


def streams_of(device: torch.device) -> Streams | None:
    """Those of a device; None for a CPU, whose copies are over when they return."""
    return None if device.type == "cpu" else CudaStreams(device)


STEPS_KNOWN = 2
"""Of so many steps it is known when the device comes to them: one is computed and one launched behind it."""


class StepCopies:
    """See FrameCopies. Steps are launched by one thread, and another may ask how many are over.

    The device waits in three places, the host in none. A step's copies start when the steps that use its blocks are
    computed; they are done in the order of the steps; and the step itself starts when they are over. Since each copy is
    behind all earlier ones, a block may be restored from a frame that is still being filled.
    """

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
