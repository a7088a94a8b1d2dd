"""Some columns of a value, of which others are read elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight


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
