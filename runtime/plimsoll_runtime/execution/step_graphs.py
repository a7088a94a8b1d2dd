"""Graphs of steps, whichever these are: a pass asks for one, and computes the step by itself where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from plimsoll_runtime.execution.capture import Capture
from plimsoll_runtime.execution.captures import Wanted
from plimsoll_runtime.execution.step_rows import StepRows


class Graphs(Protocol):
    """Graphs of whatever it may be."""

    @property
    def capture(self) -> Capture:
        """What captures them."""

    def wanted(self) -> Sequence[Wanted]:
        """All that there may be: they are captured from outside, once."""


class StepGraphs(Graphs, Protocol):
    """Graphs of some of the steps that there may be."""

    def run(self, rows: StepRows) -> Tensor | None:
        """Hidden states `[T, hidden]` of a step, valid until the next call; None where there is no graph of it.

        It sends what is in the outbox with the rows.
        """


class FirstOf:
    """See StepGraphs: of several kinds, the first that has a graph of a step. One `capture` has made them all."""

    def __init__(self, kinds: Sequence[StepGraphs]) -> None:
        """At least one kind."""
        self._kinds = kinds
        self.capture = kinds[0].capture

    def wanted(self) -> list[Wanted]:
        """See StepGraphs."""
        return [each for kind in self._kinds for each in kind.wanted()]

    def run(self, rows: StepRows) -> Tensor | None:
        """See StepGraphs."""
        for kind in self._kinds:
            if (hidden := kind.run(rows)) is not None:
                return hidden
        return None
