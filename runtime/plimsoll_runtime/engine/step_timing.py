"""Times of a step: its phases, and how long a step of a size may take before the engine counts as hung."""

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

    A phase lasts from the mark before it to its own, so nothing of a step is left out, and each boundary costs one
    reading of the clock. Parts that can be timed hold a `Timeline` or None.
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


MEMORY = 32
"""Steps over which the mean of a size is taken, the older ones fading: one that compiled a kernel is soon forgotten."""

TIMES_THE_MEAN = 10
"""Of steps of the same size. Within a size tokens differ by up to 2 times, and attention costs more in a long context.
"""
TIMES_A_GUESS = 2
"""For a size that was not measured: factor over what the next smaller measured one predicts, token by token. (That is
already more than a large step takes.)"""

FIRST_SECONDS = 600.0
"""Seconds for a step while no step was measured."""


class StepDurations:
    """Mean seconds of steps by the magnitude of their tokens (1, 2 to 3, 4 to 7 and so on); `least` is always allowed.

    The time of a step in service can hold the compilation of a kernel or the capture of a graph, of some seconds each:
    `least` has to leave room for them.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._means: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def learn(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        size = tokens.bit_length()
        count = self._counts[size] = min(MEMORY, self._counts.get(size, 0) + 1)
        mean = self._means.get(size, 0.0)
        self._means[size] = mean + (seconds - mean) / count

    def allow(self, tokens: int) -> float:
        """Seconds that a step of so many tokens may take."""
        size = tokens.bit_length()
        mean = self._means.get(size)
        if mean is not None:
            return max(self._least, TIMES_THE_MEAN * mean)
        if not self._means:
            return max(self._least, FIRST_SECONDS)
        smaller = [known for known in self._means if known < size]
        if not smaller:
            return max(self._least, TIMES_THE_MEAN * self._means[min(self._means)])
        nearest = max(smaller)
        return max(self._least, TIMES_A_GUESS * self._means[nearest] * tokens / (1 << (nearest - 1)))
