"""Graphs without a GPU: work that is kept and done again."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from plimsoll_runtime.execution.graphs.capture import Captured

UNKNOWN = -9
"""Stands in integers that no replay has written."""


class Recorder:
    """Captures by keeping the work: a replay does it again, into the same output. `failure` is raised instead.

    Each capture takes `size` bytes of the device.
    """

    def __init__(self, failure: Exception | None = None, size: int = 0) -> None:
        self.failure = failure
        self.captures = 0
        self._size = size
        self._outs: list[Tensor] = []

    @property
    def used(self) -> int:
        """See Capture: beside what others have."""
        return 1000 + self.captures * self._size

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """See Capture."""
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
    """Graphs share their memory: what one has left is another's scratch."""
    out.fill_(float("nan") if out.is_floating_point() else UNKNOWN)
