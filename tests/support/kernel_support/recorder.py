"""Graphs without a GPU: work that is kept and done again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plimsoll_runtime.execution.capture import Captured


class Recorder:
    """Captures by keeping the work: a replay does it again, into the same output. `failure` is raised instead."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.captures = 0

    def __call__(self, work: Callable[[], Tensor]) -> Captured:
        """See Capture."""
        self.captures += 1
        if self.failure is not None:
            raise self.failure
        out = torch.full_like(work(), float("nan"))

        def replay() -> None:
            out.copy_(work())

        return Captured(out, replay)
