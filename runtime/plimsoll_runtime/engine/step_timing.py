"""Times of a step: its phases, and how long a step may take before the engine counts as hung."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from itertools import islice, pairwise
from typing import NamedTuple

CAPACITY = 4096


class StepPhase(IntEnum):
    """The phases of an engine step, in this order; from MESSAGE on, its outputs are sent and handled by the server.

    If steps overlap, INPUTS to SAMPLE run in the worker thread, and WAIT is the time that the planning thread waits for
    it.
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
    """One phase of one step (the first step is 1), in nanoseconds of the clock."""

    step: int
    phase: StepPhase
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


class Timeline:
    """The last `capacity` phases of one thread's steps; older ones are overwritten (see `dropped`).

    On an asynchronous device (CUDA) a phase is the time to launch, and the first phase that reads a result waits for
    it.

    A phase lasts from the previous mark to its own, so a step has no gaps, and each boundary reads the clock once.
    Components that can be timed hold a `Timeline` or None.
    """

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a timeline must be at least 1, not {capacity}")
        self._clock = clock
        self._spans = deque[tuple[int, StepPhase, int, int]](maxlen=capacity)
        self.clear()

    @property
    def dropped(self) -> int:
        """Number of spans that were overwritten before `take` returned them."""
        return self._untaken - min(self._untaken, len(self._spans))

    @property
    def step(self) -> int:
        """Number of the last step that was begun; 0 before the first."""
        return self._step

    def of_step(self, number: int) -> list[PhaseSpan]:
        """Return the spans of a step, oldest first: of one of the last steps, because all later ones are searched.

        Another thread than that of the steps may call this, too.
        """
        found: list[PhaseSpan] = []
        for span in reversed(self._copied()):
            if span[0] < number:
                break
            if span[0] == number:
                found.append(PhaseSpan(*span))
        return found[::-1]

    def _copied(self) -> tuple[tuple[int, StepPhase, int, int], ...]:
        while True:
            try:
                return tuple(self._spans)
            except RuntimeError:  # the steps' thread has added a span meanwhile
                continue

    def clear(self) -> None:
        """Remove all spans; the next step is number 1."""
        self._totals = [0] * len(StepPhase)
        self._step = self._untaken = 0
        self._spans.clear()
        self._mark = self._clock()

    def begin(self) -> None:
        """Start the next step and its first phase."""
        self._step += 1
        self._mark = self._clock()

    def lap(self, phase: StepPhase) -> None:
        """Record that `phase` lasted from the last mark until now, which becomes the next mark."""
        now = self._clock()
        self._spans.append((self._step, phase, self._mark, now))
        self._totals[phase] += now - self._mark
        self._mark = now
        self._untaken += 1

    def lap_of(self, phase: StepPhase, nanoseconds: int) -> None:
        """Record that `phase` lasted `nanoseconds` from the last mark, at most until now, as another process timed
        it.
        """
        end = min(self._mark + nanoseconds, self._clock())
        self._spans.append((self._step, phase, self._mark, end))
        self._totals[phase] += end - self._mark
        self._mark = end
        self._untaken += 1

    def totals(self) -> tuple[float, ...]:
        """Return the seconds of each phase since the last `clear`, in the order of StepPhase."""
        return tuple([total / 1e9 for total in self._totals])

    def take(self) -> list[PhaseSpan]:
        """Return the spans that were not taken before, oldest first."""
        taken, self._untaken = max(0, len(self._spans) - self._untaken), 0
        return [PhaseSpan(*span) for span in islice(self._spans, taken, None)]

    def check_integrity(self) -> None:
        """Raise AssertionError if the recorded spans are inconsistent."""
        spans = [PhaseSpan(*span) for span in self._spans]
        for span in spans:
            assert span.start_ns <= span.end_ns, "a span ends before it begins"
        for before, after in pairwise(spans):
            assert before.step <= after.step, "steps are out of order"
            assert before.end_ns <= after.start_ns, "spans overlap"
            assert before.step < after.step or before.end_ns == after.start_ns, "a step has a gap"


MEMORY = 32
"""Steps in the moving average of durations: older ones lose weight, so a step that compiled a kernel soon
has no effect."""

TIMES_THE_MEAN = 10
"""A step may take this many times the mean of steps of its size: within a size, tokens differ by up to 2 times, and
attention costs more in a long context."""
TIMES_A_GUESS = 2
"""A step of a size that was not measured may take this many times its prediction: the seconds per token of the next
smaller measured size, times its tokens. (A large step takes less than this prediction.)"""

KNOWN = 8
"""Steps of a size after which their mean says how long one usually takes."""

FIRST_SECONDS = 600.0
"""Seconds allowed for a step while no step has been measured."""


class StepDurations:
    """Mean seconds of steps by the magnitude of their tokens (1, 2 to 3, 4 to 7 and so on); `least` is always allowed.

    A step can include the compilation of a kernel or the capture of a graph, which take some seconds each; `least` must
    leave time for them.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._means: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def usual(self, tokens: int) -> float | None:
        """Return the mean seconds of steps of this size; None if fewer than KNOWN were measured."""
        size = tokens.bit_length()
        return self._means[size] if self._counts.get(size, 0) >= KNOWN else None

    def learn(self, tokens: int, seconds: float) -> None:
        """Record that a step of `tokens` tokens took `seconds`."""
        size = tokens.bit_length()
        count = self._counts[size] = min(MEMORY, self._counts.get(size, 0) + 1)
        mean = self._means.get(size, 0.0)
        self._means[size] = mean + (seconds - mean) / count

    def allow(self, tokens: int) -> float:
        """Return the seconds that a step of `tokens` tokens may take before it counts as hung; 0: any time."""
        if not self._least:
            return 0.0
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
