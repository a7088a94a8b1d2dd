"""Ops that take columns of a value: all of them split, or some alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight


@dataclass(frozen=True, slots=True)
class Split:
    """As many values as `widths`, which lie side by side in the one that is read. Nothing is copied."""

    widths: tuple[int, ...]
    reads: Values
    writes: Values
    kind: OpKind = OpKind.STATE

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost()

    def row_bytes(self, size: int) -> int:
        """See Op: what is read stays until the last of its parts was."""
        return sum(self.widths) * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        widths = list(self.widths)

        def run(step: Step, x: Tensor) -> tuple[Tensor, ...]:
            return torch.split(x, widths, dim=-1)

        return run


@dataclass(frozen=True, slots=True)
class Columns:
    """The `part`-th `width` columns. Nothing is copied."""

    part: int
    width: int
    reads: Values
    writes: Values
    kind: OpKind

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost()

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 0

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        first, end = self.part * self.width, (self.part + 1) * self.width

        def run(step: Step, x: Tensor) -> Tensor:
            return x[:, first:end]

        return run
