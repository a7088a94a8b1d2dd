"""Graphs without a GPU: work that is stored and repeated."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from plimsoll_runtime.execution.graphs.capture import Captured

UNKNOWN = -9
"""The value of integers that no replay has written."""


class Recorder:
    """Captures by storing the work: a replay repeats it, into the same output. If `failure` is set, it is raised
    instead.

    Each capture takes `size` bytes of the device.
    """

    def __init__(self, failure: Exception | None = None, size: int = 0) -> None:
        self.failure = failure
        self.captures = 0
        self._size = size
        self._outs: list[Tensor] = []

    @property
    def used(self) -> int:
        return 1000 + self.captures * self._size

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        self.captures += 1
        if self.failure is not None:
            raise self.failure
        first = work()
        out = first.clone()
        self._outs.append(out)
        for each in self._outs:
            _spoil(each)

        def replay() -> None:
            found = work()
            for each in self._outs:
                _spoil(each)
            out.copy_(found)

        return Captured(out, replay)


def _spoil(out: Tensor) -> None:
    """Overwrite an output, because graphs share their memory."""
    out.fill_(float("nan") if out.is_floating_point() else UNKNOWN)
