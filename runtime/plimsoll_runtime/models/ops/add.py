"""Sums of values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plimsoll_runtime.models.ops.cost import OpCost, OpKind, StepRows
from plimsoll_runtime.models.ops.op import Run, Step, Values, Weights
from plimsoll_runtime.models.ops.weight import Weight


@dataclass(frozen=True, slots=True)
class Add:
    """x + y x scale. It costs nothing: whoever has made y, or reads the sum, passes over it anyway."""

    width: int
    kind: OpKind
    reads: Values
    writes: Values
    scale: float = 1.0

    def weights(self) -> tuple[Weight, ...]:
        """See Op."""
        return ()

    def cost(self, rows: StepRows, size: int) -> OpCost:
        """See Op."""
        return OpCost()

    def row_bytes(self, size: int) -> int:
        """See Op."""
        return 2 * self.width * size

    def compiled(self, weights: Weights) -> Run:
        """See Op."""
        scale = self.scale

        def run(step: Step, x: Tensor, y: Tensor) -> Tensor:
            return x + (y if scale == 1.0 else y * scale)

        return run
