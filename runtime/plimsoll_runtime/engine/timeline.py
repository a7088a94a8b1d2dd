"""Where a step's time goes: consecutive phases, from marks of one clock in a ring that is there from the start.

A phase lasts from the mark before it to its own, so nothing of a step is left out and each boundary costs one reading
of the clock. Whoever may be timed holds a `Timeline` or None, and asks only that.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

CAPACITY = 4096


class StepPhase(IntEnum):
    """What an engine does in a step, in this order, and what a server then does with the step's outputs.

    Where steps overlap, INPUTS to SAMPLE are the computing thread's, and WAIT is what the planning thread waits for it.
    """

    SCHEDULE = 0
    INPUTS = 1
    FORWARD = 2
    HEAD = 3
    SAMPLE = 4
    WAIT = 5
    COMMIT = 6
    MESSAGE = 7
    DETOKENISE = 8
    EVENTS = 9


class PhaseSpan(NamedTuple):
    """One phase of one step (the first is 1), in the clock's nanoseconds."""

    step: int
    phase: StepPhase
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


class Timeline:
    """The last `capacity` phases of one thread's steps; older ones are overwritten and counted in `dropped`.

    On a device that computes behind the caller's back (CUDA) a phase is the time to launch, and the first one that
    reads a result waits for it.
    """

    __slots__ = (
        *("_capacity", "_clock", "_ends", "_mark", "_phases", "_starts"),
        *("_step", "_steps", "_taken", "_totals", "_written"),
    )

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        if capacity < 1:
            raise ValueError(f"a timeline needs room for at least one span, not {capacity}")
        self._capacity = capacity
        self._clock = clock
        self._phases = array("b", bytes(capacity))
        self._steps, self._starts, self._ends = (array("q", bytes(8 * capacity)) for _ in range(3))
        self.clear()

    @property
    def dropped(self) -> int:
        """Spans that were overwritten before anybody took them."""
        return max(0, self._written - self._taken - self._capacity)

    def clear(self) -> None:
        """Forget everything: the next step is the first."""
        self._totals = [0] * len(StepPhase)
        self._step = self._written = self._taken = 0
        self._mark = self._clock()

    def begin(self) -> None:
        """A step begins now."""
        self._step += 1
        self._mark = self._clock()

    def lap(self, phase: StepPhase) -> None:
        """The phase that began at the last mark ends now."""
        now = self._clock()
        index = self._written % self._capacity
        self._phases[index] = phase
        self._steps[index] = self._step
        self._starts[index] = self._mark
        self._ends[index] = now
        self._totals[phase] += now - self._mark
        self._mark = now
        self._written += 1

    def totals(self) -> tuple[float, ...]:
        """Seconds of each phase since the start, in the order of StepPhase."""
        return tuple([total / 1e9 for total in self._totals])

    def take(self) -> list[PhaseSpan]:
        """The spans that are there and were not taken before, oldest first."""
        first = max(self._taken, self._written - self._capacity)
        self._taken = self._written
        return [self._span(number % self._capacity) for number in range(first, self._written)]

    def check_integrity(self) -> None:
        """Raises AssertionError where what is kept could not have been measured."""
        assert 0 <= self._taken <= self._written, "more was taken than was written"
        first = max(0, self._written - self._capacity)
        spans = [self._span(number % self._capacity) for number in range(first, self._written)]
        for span in spans:
            assert span.start_ns <= span.end_ns, "a span ends before it begins"
        for before, after in pairwise(spans):
            assert before.step <= after.step, "steps are out of order"
            assert before.end_ns <= after.start_ns, "spans overlap"
            assert before.step < after.step or before.end_ns == after.start_ns, "a step has a gap"

    def _span(self, index: int) -> PhaseSpan:
        return PhaseSpan(self._steps[index], StepPhase(self._phases[index]), self._starts[index], self._ends[index])
