"""A step is replayed from the first kind of graphs that has one for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plimsoll_runtime.execution.graphs.capture import CaptureRequest, FirstOf
from plimsoll_runtime.execution.inputs.step_rows import StepRows


class UpTo:
    """Graphs of steps up to a number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def wanted(self) -> list[CaptureRequest]:
        return [CaptureRequest("rows", self._rows, lambda: None)]

    def run(self, rows: StepRows) -> Tensor | None:
        return torch.tensor(self._rows) if rows.known.size <= self._rows else None


def test_the_first_that_has_one() -> None:
    first = FirstOf([UpTo(2), UpTo(8)])
    steps: list[Any] = [SimpleNamespace(known=np.zeros(rows)) for rows in (1, 2, 3, 8, 9)]
    found = [first.run(step) for step in steps]
    assert [None if each is None else each.item() for each in found] == [2, 2, 8, 8, None]
    assert [each.rows for each in first.wanted()] == [2, 8]
