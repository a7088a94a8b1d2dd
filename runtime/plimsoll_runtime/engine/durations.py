"""How long a step may take, from what steps of its size have taken: an engine that takes longer counts as hung."""

from __future__ import annotations

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
